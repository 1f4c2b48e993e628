"""`python3 -m rlprof_ops`: the command line without an install, for containers that only mount a checkout."""

from rlprof_ops.cli import main

if __name__ == "__main__":
    main()
