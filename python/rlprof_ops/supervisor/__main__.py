"""`python -m rlprof_ops.supervisor`: one node's task, started by scripts/node.sh under srun."""

from __future__ import annotations

import signal
import sys

if __name__ == "__main__":
    # Before anything is imported: until somebody waits for it, an order to end stays pending.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGINT, signal.SIGUSR2})
    from rlprof_ops.supervisor.node_task import main

    sys.exit(main())
