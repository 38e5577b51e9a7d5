"""Output for people on a terminal: sentences, tables, progress."""
