"""What the work on a GPU is and moves: kinds of kernels, copies."""
