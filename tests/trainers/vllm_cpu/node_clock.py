"""The node's clock, as an engine in another process reads it."""

import os
import time

from rlprof_ops.runtime.clock_file import ClockFile

KNOWN_S = 60


def known(step: int) -> None:
    """Return once the processes of this node know of the step that was told; at once where none follows.

    Training waits for that where a window begins or ends, and else goes on: a real step is longer.
    """
    try:
        clock = ClockFile(os.environ["RLPROF_NODE_DIR"])
    except (OSError, KeyError):
        return
    until = time.monotonic() + KNOWN_S
    while clock.read().step != step and time.monotonic() < until:
        time.sleep(0.01)
