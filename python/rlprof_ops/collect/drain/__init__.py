"""The ordered end on one node."""
