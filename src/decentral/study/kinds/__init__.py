"""Kinds of studies: one file each. `kind: comparison` in a study's YAML chooses kinds/comparison.py."""
