"""Ray's own profiler plugins, repaired in memory."""
