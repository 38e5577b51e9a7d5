"""What asynchronous methods need between real processes: messages between workers, groups and pairs that average."""
