"""Single items of the papers: fish school, stragglers, exchanges, collectives, searches, validation."""
