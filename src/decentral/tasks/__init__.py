"""What is optimized. One file per task."""
