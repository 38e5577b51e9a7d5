"""What moves between workers: a few verbs on rows, in one process or over torch.distributed."""
