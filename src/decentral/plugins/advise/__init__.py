"""`decentral-advise`: predicted time of a step, by method, for a model on a described or measured network."""
