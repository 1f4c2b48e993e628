"""Inside the training process: step gate and ranges."""
