"""Environments of policies (`env=`): ours, gymnasium's and Habitat's, with the interface in `environment.py`."""
