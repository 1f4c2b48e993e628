"""How a capture is launched, gated, named and checked, one module a profiler."""
