"""The flight recorder: every step of a job and its nodes once a second, and what stands out in them.

One process a node (`__main__`) samples the machine, reads the steps of the node's processes, and keeps both
in the node folder. The head's also sums up all nodes and says what it finds. Standard library alone.
"""
