"""Local update rules on rows: u = Opt(g), never communicated. One file per rule."""
