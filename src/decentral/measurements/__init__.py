"""What a study measures besides training runs: one file each, which declares its settings, computes lines that can be
resumed, and says how they become values and curves. `kind: consensus` in a study's YAML chooses consensus.py."""
