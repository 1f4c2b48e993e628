"""Windows of a process under `nsys profile`: it opens and closes its own capture range. The report comes
when it ends.
"""

from __future__ import annotations

import ctypes
from pathlib import Path

from rlprof_ops.backends.contract import CaptureError
from rlprof_ops.backends.nsight import nsys_cli, nsys_options


class NsysRangeRecorder:
    """`opened_by` is what nsys waits for: cudaProfilerApi, nvtx, or none when it records all the time.

    `late`: closing a window gives no file.

    `open` and `close` raise `CaptureError`.
    """

    suffix = nsys_cli.SUFFIX
    late = True

    def __init__(self, opened_by: str) -> None:
        self._opened_by = opened_by
        self._range: object = None

    def open(self, target: Path) -> None:
        if self._opened_by == "cudaProfilerApi":
            _cuda("cudaProfilerStart")
        elif self._opened_by == "nvtx":
            try:
                import nvtx
            except ImportError as error:
                raise CaptureError(f"nvtx cannot be imported, which opens the window: {error}") from None
            self._range = nvtx.start_range(nsys_options.NVTX_RANGE, domain=nsys_options.NVTX_DOMAIN)

    def entered(self, step: int) -> None:
        return None

    def close(self) -> Path:
        if self._opened_by == "cudaProfilerApi":
            _cuda("cudaProfilerStop")
        elif self._range is not None:
            import nvtx

            nvtx.end_range(self._range)
            self._range = None
        return Path()


def _cuda(function: str) -> None:
    """Call the CUDA runtime that this process has; torch's own when it is loaded."""
    for name in (None, "libcudart.so", "libcudart.so.12", "libcudart.so.13", "libcudart.so.11.0"):
        try:
            call = getattr(ctypes.CDLL(name), function)
        except (OSError, AttributeError):
            continue
        code = call()
        if code != 0:
            raise CaptureError(f"{function} returned CUDA error {code}")
        return
    raise CaptureError(
        f"no CUDA runtime has {function} here: use capture-range nvtx, or leave it out for sessions"
    )
