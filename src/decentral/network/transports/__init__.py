"""What carries rows between the processes of a run: torch.distributed, or memory that the processes of a host share."""
