"""The console commands: compose with Hydra, refuse, help, sweep."""
