"""Environments in which policies act, `env=`: ours, gymnasium's and Habitat's, by the contract in `environment.py`."""
