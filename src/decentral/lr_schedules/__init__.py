"""Learning-rate schedules, the factor on `lr` in each step: one file for each. `schedule=` on the command line."""
