"""The configuration of a run: schema, composition, validation and identity."""
