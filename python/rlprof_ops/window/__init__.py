"""One life of a window, whoever drives it: this process at its own steps, or its node's supervisor.

Standard library and PyYAML alone, since every training process loads it.
"""
