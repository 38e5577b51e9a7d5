"""Communication between workers: a few operations on rows, in one process or over torch.distributed."""
