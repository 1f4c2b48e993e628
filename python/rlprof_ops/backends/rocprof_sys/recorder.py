"""Windows of rocprof-sys: its own Python switch, in a worker that was started under it. The trace comes
when the process ends.
"""

from __future__ import annotations

import sys
from pathlib import Path

from rlprof_ops.backends.contract import CaptureError
from rlprof_ops.backends.rocprof_sys import front_end


class RocprofRecorder:
    """`rocprofsys.user.start_trace` and `stop_trace` (source/python/rocprofsys/user, and
    `ROCPROFSYS_INIT_ENABLED=false`).

    `late`: closing a window gives no file. One trace holds all windows of the process, and is named by the
    plugin.

    `open` and `close` raise `CaptureError`.
    """

    suffix = front_end.SUFFIX
    late = True

    def open(self, target: Path) -> None:
        try:
            from rocprofsys.user import start_trace
        except ImportError as error:
            raise CaptureError(f"rocprof-sys has no switch in this process: {error}") from None
        start_trace()

    def entered(self, step: int) -> None:
        return None

    def close(self) -> Path:
        from rocprofsys.user import stop_trace

        stop_trace()
        return Path()


def is_wrapped() -> bool:
    """Whether this process was started by `python -m rocprofsys`."""
    return "rocprofsys" in sys.modules
