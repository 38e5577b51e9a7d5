"""One-sided communication: a worker writes into its neighbors' slots without their participation."""
