"""Slurm: its commands, its options, the state of a job."""
