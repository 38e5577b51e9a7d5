"""The problems that tasks create for runs. They import torch; the tasks do not."""
