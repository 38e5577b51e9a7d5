"""Optimization tasks, one file each."""
