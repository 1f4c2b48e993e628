"""A small real GRPO on Ray, CPU only: the trainer that rlprof-ops is tried and tested on, and an example
for users.
"""
