"""What the benchmarks hold this program against: the same work as others do it, or the least that it can be."""
