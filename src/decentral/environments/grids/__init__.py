"""What env=gridworld is made of: mazes, and many walks through them at once."""
