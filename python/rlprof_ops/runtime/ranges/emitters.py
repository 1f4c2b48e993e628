"""How a range reaches a profiler: NVTX for nsys, `record_function` for torch. Nothing is imported before
it is needed.
"""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Protocol, cast

DOMAIN = "rlprof"

# Colours by phase, so that a timeline reads the same for every trainer; names as in docs/contracts.md.
_COLORS = {
    "generation": 0xFF4C9F38,
    "reward": 0xFFE6C229,
    "ref_logprob": 0xFF808000,
    "logprob": 0xFF1A73E8,
    "advantage": 0xFF8D6E63,
    "train": 0xFFD93025,
    "weight_sync": 0xFF8E44AD,
}
_GRAY = 0xFF9E9E9E


class RangeEmitter(Protocol):
    """One way to write a range: `end` takes the token that `start` gave."""

    kind: str

    def start(self, name: str) -> object: ...

    def end(self, token: object) -> None: ...


class NvtxRanges:
    """Ranges by start and end ids, not push and pop: a range that spans an `await` ends itself and no
    other.
    """

    kind = "nvtx"

    def __init__(self) -> None:
        import nvtx

        self._nvtx = nvtx

    def start(self, name: str) -> object:
        return self._nvtx.start_range(name, color=_COLORS.get(name, _GRAY), domain=DOMAIN)

    def end(self, token: object) -> None:
        self._nvtx.end_range(token)


class TorchNvtxRanges:
    """NVTX by torch, where the `nvtx` package is missing: no domain, so the name carries it.

    Raises ImportError where it is not there.
    """

    kind = "torch.cuda.nvtx"

    def __init__(self) -> None:
        import torch

        if not torch.cuda.is_available():
            raise ImportError("torch.cuda.nvtx needs CUDA")
        self._nvtx = torch.cuda.nvtx

    def start(self, name: str) -> object:
        return self._nvtx.range_start(name)

    def end(self, token: object) -> None:
        self._nvtx.range_end(token)


class RoctxRanges:
    """Ranges for AMD's profilers, by ROCm's own library. `roctxRangeStartA` gives an id, so awaits are no
    trouble.

    Raises ImportError where it is not there.
    """

    kind = "roctx"
    LIBRARIES = ("librocprofiler-sdk-roctx.so.1", "libroctx64.so.4", "libroctx64.so")

    def __init__(self, libraries: tuple[str, ...] = LIBRARIES) -> None:
        import ctypes

        for name in libraries:
            try:
                library = ctypes.CDLL(name)
                break
            except OSError:
                continue
        else:
            raise ImportError(f"none of {', '.join(libraries)} is there")
        library.roctxRangeStartA.argtypes = [ctypes.c_char_p]
        library.roctxRangeStartA.restype = ctypes.c_uint64
        library.roctxRangeStop.argtypes = [ctypes.c_uint64]
        self._library = library

    def start(self, name: str) -> object:
        return self._library.roctxRangeStartA(name.encode())

    def end(self, token: object) -> None:
        self._library.roctxRangeStop(token)


class RecordFunctionRanges:
    """torch's own ranges; only useful while torch.profiler runs. None while torch traces (`torch.jit.trace`,
    `make_fx`, `aot_function`): such a range would be an operator of the graph that is made.
    """

    kind = "record_function"

    def __init__(self) -> None:
        import torch

        self._record_function = torch.profiler.record_function
        self._is_tracing = torch.jit.is_tracing

    def start(self, name: str) -> object:
        proxies = sys.modules.get("torch.fx.experimental.proxy_tensor")
        mode = getattr(proxies, "get_proxy_mode", None)  # torch 2.3 has it
        if self._is_tracing() or (mode is not None and mode() is not None):
            return None
        range_: AbstractContextManager[object] = self._record_function(name)
        range_.__enter__()
        return range_

    def end(self, token: object) -> None:
        if token is not None:
            cast(AbstractContextManager[object], token).__exit__(None, None, None)


@functools.lru_cache(maxsize=1)
def record_function_ranges() -> RecordFunctionRanges:
    """One for the process, so that the set of emitters compares equal from window to window."""
    return RecordFunctionRanges()


def nvtx_ranges() -> RangeEmitter | None:
    """The best way to NVTX here, to roctx on an AMD machine; None when there is none."""
    makers: tuple[Callable[[], RangeEmitter], ...] = (NvtxRanges, TorchNvtxRanges)
    if os.path.exists("/dev/kfd"):
        makers = (RoctxRanges, *makers)
    for maker in makers:
        try:
            return maker()
        except (ImportError, OSError, AttributeError):
            continue
    return None
