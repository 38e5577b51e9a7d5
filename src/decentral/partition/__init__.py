"""How the training set is dealt out to the workers: iid, dirichlet, dirichlet_thesis, shards, natural."""
