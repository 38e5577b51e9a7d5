"""What the program costs: `make bench`. Every figure is a ratio of two things measured in turn, in one run."""
