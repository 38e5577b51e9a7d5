"""Transports between the processes of a run: torch.distributed, or shared memory on one host."""
