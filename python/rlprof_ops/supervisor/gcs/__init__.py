"""What the head asks of Ray's GCS: which nodes are alive, and what somebody waits for."""
