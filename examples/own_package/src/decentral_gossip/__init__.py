"""A topology and an algorithm for decentral, found by their entry points once this is installed."""
