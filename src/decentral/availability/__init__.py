"""Who takes part when: `availability=` on the command line, in steps or in simulated seconds."""
