"""A supervisor that is killed while its job runs, and the one that takes its place."""
