"""Measurements of studies besides training runs: one file each, which declares its settings, computes resumable lines,
and converts them to values and curves. `kind: consensus` in a study's YAML selects consensus.py."""
