"""The processes of one run: start, watch, restart, devices, who died first."""
