"""A topology and an algorithm for decentral, found through entry points after installation."""
