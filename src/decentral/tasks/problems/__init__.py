"""The problems that tasks open: what runs work on. They import torch; the tasks themselves do not."""
