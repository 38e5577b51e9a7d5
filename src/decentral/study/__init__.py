"""Studies: a paper's table or figure as cells that plan, run, resume and report themselves."""
