"""What a paper says of its numbers, as something that can be checked."""
