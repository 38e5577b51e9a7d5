"""What a person sees on a terminal: sentences, tables, progress."""
