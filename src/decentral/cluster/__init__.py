"""Machines as a model: how long a gradient takes, who straggles, what a link costs. `cluster=` on the command line."""
