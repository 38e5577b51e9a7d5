"""Learning-rate schedules (`schedule=`): the factor on `lr` in each step."""
