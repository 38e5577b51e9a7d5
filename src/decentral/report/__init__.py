"""Tables and figures. They read run directories and nothing else."""
