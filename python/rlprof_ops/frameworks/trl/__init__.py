"""TRL: one process a rank, the trainer itself; its adapter needs nothing from the command line."""
