"""What a node of a job has: its state, its Ray, its files."""
