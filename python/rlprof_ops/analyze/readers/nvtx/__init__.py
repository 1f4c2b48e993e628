"""NVTX in nsys exports: ranges, and what NCCL writes into its own."""
