"""`rlprof doctor`: what a profiled job will meet on this machine and on compute nodes, and what to do
about it.
"""
