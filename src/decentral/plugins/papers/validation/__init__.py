"""How far simulated time can be trusted: what real workers did, and what the clock makes of it."""
