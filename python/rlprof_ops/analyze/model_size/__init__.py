"""The size of the trained model, and what share of the GPUs' peak its work is (MFU)."""
