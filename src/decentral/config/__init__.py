"""What a run is told: its schema, its composition and validation, its identity."""
