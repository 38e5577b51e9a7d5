"""Rules for choosing a learning rate: one file each. `tune: {rule: grid}` in a study's YAML chooses tuning/grid.py."""
