"""Real trainers without a GPU: how each is installed, how a small unmodified run of it is started."""
