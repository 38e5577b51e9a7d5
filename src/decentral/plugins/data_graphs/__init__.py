"""Graphs from data: topologies that see which classes the workers hold, and weights that minimize an objective."""
