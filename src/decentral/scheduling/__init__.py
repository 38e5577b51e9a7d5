"""Many runs over devices: slots, this machine, SLURM, Ray."""
