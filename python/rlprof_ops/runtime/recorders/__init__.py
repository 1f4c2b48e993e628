"""One module a way to record a window: nsys, torch, memory, rocprof-sys."""
