"""`decentral-advise`: what a step takes, by method, for a model on a network that is described or measured."""
