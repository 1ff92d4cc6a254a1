"""What people and other programs read. A report reads results and nothing else."""
