"""What is optimised. One file per task."""
