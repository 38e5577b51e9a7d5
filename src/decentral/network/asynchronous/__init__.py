"""What asynchronous methods need between real processes: letters between workers, groups and pairs that average."""
