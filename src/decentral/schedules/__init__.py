"""Learning-rate schedules: (step, steps per epoch) -> factor on `lr`. One file per schedule."""
