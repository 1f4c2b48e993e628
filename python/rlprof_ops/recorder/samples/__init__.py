"""What a node shows each second: its host, its GPUs, its engines, its processes' steps."""
