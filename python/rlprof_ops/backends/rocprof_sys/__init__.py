"""rocprof_sys: AMD's rocprof-sys, which runs a Python worker as its script and writes at its end."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from rlprof_ops.backends.contract import (
    Asked,
    Backend,
    CaptureError,
    Spec,
    Verdict,
    Where,
    WindowRecorder,
    not_wrapped,
)
from rlprof_ops.backends.rocprof_sys.front_end import NAME, RAY_WORDS, SUFFIX, TITLE
from rlprof_ops.backends.rocprof_sys.front_end import validate as _validate


class RocprofRecorder:
    """Windows of rocprof-sys: its own Python switch, in a worker that was started under it.
    `rocprofsys.user.start_trace` and `stop_trace` (source/python/rocprofsys/user, and
    `ROCPROFSYS_INIT_ENABLED=false`).

    `late`: closing a window gives no file. One trace holds all windows of the process, and is named by the
    plugin.

    `open` and `close` raise `CaptureError`.
    """

    suffix = SUFFIX
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


class RocprofSys(Backend):
    name = NAME
    title = TITLE
    aliases = ("rocprof", "rocprof-sys", "rocm", "amd", "omnitrace")
    suffixes = (SUFFIX,)
    summary = "AMD's rocprof-sys: HIP, roctx ranges and the host, one trace for all windows of a process"
    ranges = "nvtx"
    secret_files = ("*metadata*.json",)
    derived = (".pftrace",)
    on_demand = False
    one_report = True
    ray_key = "_rocprof_sys"
    ray_words = RAY_WORDS
    wrap = "rlprof_ops.backends.rocprof_sys.rocprof_wrap:WRAP"
    ray_plugin = "rlprof_ops.backends.rocprof_sys.rocprof_wrap:PLUGIN"
    doctor = "rlprof_ops.backends.rocprof_sys.rocprof_wrap:findings"

    def validate(self, spec: Asked, where: Where) -> Verdict:
        return _validate(spec, where)

    def recorder(self, spec: Spec, beside: Sequence[Spec]) -> tuple[WindowRecorder | None, str]:
        if "rocprofsys" in sys.modules:  # `python -m rocprofsys` started this process
            return RocprofRecorder(), ""
        return None, not_wrapped("`rocprofsys` (the module rocprofsys is not loaded)")


BACKEND = RocprofSys()
