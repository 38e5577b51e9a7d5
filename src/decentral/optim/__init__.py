"""Local optimizers on rows, u = Opt(g), never communicated: one file for each; `rows` has the sums they are made of."""
