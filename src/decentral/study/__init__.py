"""Studies: a paper's table or figure as cells that plan, run, resume and report themselves."""

SCALES = ("smoke", "small", "laptop", "paper")
"""Seconds; the whole study on bundled data; the paper's data with a small network, overnight on two cores; the paper's
data and model."""
