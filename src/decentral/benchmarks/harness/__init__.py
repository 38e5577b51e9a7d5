"""What all benchmarks share: their contract, how one is run, stored and shown."""
