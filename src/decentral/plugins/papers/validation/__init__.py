"""Validation of simulated time: observations of real workers, and the clock's predictions for them."""
