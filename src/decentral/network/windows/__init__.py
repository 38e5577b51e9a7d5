"""One-sided communication: a worker writes into slots of its neighbours, who need not be ready for it."""
