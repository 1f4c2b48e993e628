"""How a worker's command line is put under a profiler."""
