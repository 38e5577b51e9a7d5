"""Availability of workers (`availability=`), in steps or in simulated seconds."""
