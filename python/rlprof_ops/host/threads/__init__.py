"""Threads of ours inside a program that is watched, and its own timers beside them."""
