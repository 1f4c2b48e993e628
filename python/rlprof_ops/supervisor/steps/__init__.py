"""The job's steps on a node: passed on, and windows opened at them."""
