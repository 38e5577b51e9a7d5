"""Local optimizers on rows, u = Opt(g), without communication: one file for each; `rows` has in-place arithmetic."""
