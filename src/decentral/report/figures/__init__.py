"""The figures of studies: one kind per file, drawn on the same canvas."""
