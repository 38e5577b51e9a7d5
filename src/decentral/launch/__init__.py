"""Processes and devices for a run."""
