"""Several things timed in turn, in one process or in many."""
