"""From the dumps of PyTorch's flight recorder to who is missing in which collective."""
