"""Further tables of a study, made from its numbers: one file each."""
