"""Training: the loop, checkpoints, random streams, distributed."""
