"""Partitions of the training set over the workers: iid, dirichlet, dirichlet_thesis, shards, natural."""
