"""OpenRLHF as it is shipped: its adapter. It has no profiling configuration of its own to write or read."""
