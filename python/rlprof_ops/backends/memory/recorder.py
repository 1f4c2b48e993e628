"""Memory over a window: CUDA's allocation history as a snapshot, or the process's resident memory on the
host.
"""

from __future__ import annotations

import functools
import gzip
import json
import os
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from rlprof_ops.backends.contract import CaptureError, Options
from rlprof_ops.backends.memory import options as memory
from rlprof_ops.backends.memory.options import NEEDS_CUDA, MemoryOptions, parse
from rlprof_ops.host.after_import import after_import
from rlprof_ops.host.log_line import log_once

if TYPE_CHECKING:
    from tracemalloc import Snapshot


def memory_recorder(spec: Options) -> CudaMemoryRecorder | HostMemoryRecorder:
    """The recorder of a memory capture that `backends.validate` has let through."""
    options = parse(spec.options, spec.flags)
    return HostMemoryRecorder(options) if options.host else CudaMemoryRecorder(options)


class _History:
    """Who has torch's memory history on: there is one in a process, and ours never switches the program's
    off.
    """

    def __init__(self) -> None:
        self.theirs = False
        self._ours: CudaMemoryRecorder | None = None
        self._followed: object = None
        self._calling = False  # one of ours

    def follow(self, memory: ModuleType) -> None:
        """Know of the program's own calls from now on."""
        before = memory._record_memory_history
        if before is self._followed:
            return
        enabled_already = getattr(sys.modules["torch"]._C, "_cuda_isHistoryEnabled", bool)
        self.theirs = self._ours is None and bool(enabled_already())

        @functools.wraps(before)
        def record(*arguments: Any, **named: Any) -> Any:
            if not self._calling:
                try:
                    self._they_call(bool(named.get("enabled", arguments[0] if arguments else "all")))
                except Exception as error:
                    log_once(f"memory history of the program's own is not followed: {error}")
            return before(*arguments, **named)

        memory._record_memory_history = record  # type: ignore[attr-defined]
        self._followed = record

    def _they_call(self, enabled: bool) -> None:
        ours, self.theirs = self._ours, enabled
        if ours is not None and not ours.cut_short:
            what = "began its own" if enabled else "ended the"
            ours.cut(f"yielded to the program, which {what} memory history: the snapshot ends there")

    def begin(self, ours: CudaMemoryRecorder, torch: ModuleType, settings: Mapping[str, object]) -> None:
        """Switch the history on, unless the program has: then the snapshot is of its own."""
        if not self.theirs:
            self._record(torch, enabled="all", **settings)
        self._ours = ours

    def end(self, ours: CudaMemoryRecorder, torch: ModuleType) -> None:
        """Off again, since it costs time and memory at every allocation; the program's own stays."""
        self._ours = None
        if not self.theirs and not ours.cut_short:
            self._record(torch, enabled=None)

    def _record(self, torch: ModuleType, **settings: object) -> None:
        self._calling = True
        try:
            torch.cuda.memory._record_memory_history(**settings)
        finally:
            self._calling = False


history = _History()


class CudaMemoryRecorder:
    """The caching allocator's history (torch.cuda.memory), on from `open` to `close`; the snapshot opens in
    pytorch.org/memory_viz. An allocation that failed in the window is in it, with its call path.

    Nothing of ours runs while an allocation fails: on an H200 (torch 2.11) programs that caught the error
    ended in a window whose recorder took a snapshot from torch's observer then. Why is not known.

    `open` and `close` raise `CaptureError`.
    """

    suffix = memory.SUFFIX

    def __init__(self, options: MemoryOptions) -> None:
        self._options = options
        self._torch: ModuleType | None = None
        self._target: Path | None = None
        self._dumped = False
        self.steps: list[int] = []
        self.cut_short = ""
        after_import("torch.cuda.memory", history.follow)

    def open(self, target: Path) -> None:
        try:
            import torch
        except ImportError as error:
            raise CaptureError(f"torch cannot be imported: {error}") from None
        if not torch.cuda.is_available():
            raise CaptureError(NEEDS_CUDA)
        history.follow(torch.cuda.memory)
        self._torch, self._target, self.steps = torch, target, []
        self._dumped, self.cut_short = False, ""
        options = self._options
        settings: dict[str, object] = {
            "context": None if options.context == "none" else options.context,
            "stacks": options.stacks,
            "max_entries": options.max_entries,
        }
        try:
            history.begin(self, torch, settings)
        except Exception as error:
            raise CaptureError(f"torch's memory history did not start: {error}") from error

    def entered(self, step: int) -> None:
        if not self.cut_short:
            self.steps.append(step)

    def cut(self, reason: str) -> None:
        """The program is about to switch the history off, which empties it: take the snapshot now."""
        self.cut_short = reason
        self._dump()

    def close(self) -> Path:
        target = self._target
        if target is None or self._torch is None:
            raise CaptureError("the memory history was not on")
        try:
            self._dump()
        except Exception as error:
            raise CaptureError(f"torch's memory snapshot failed: {error}") from error
        finally:
            self._target = None
            history.end(self, self._torch)
        return target

    def _dump(self) -> None:
        if self._torch is not None and not self._dumped:
            self._torch.cuda.memory._dump_snapshot(str(self._target))
            self._dumped = True


class HostMemoryRecorder:
    """Resident memory, sampled by a thread every `interval_ms`, and with `tracemalloc` the lines that grew
    most.

    `open` and `close` raise `CaptureError`.
    """

    suffix = memory.HOST_SUFFIX

    def __init__(self, options: MemoryOptions) -> None:
        self._options = options
        self._target: Path | None = None
        self._samples: list[tuple[int, int]] = []
        self._steps: list[tuple[int, int]] = []
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._before: Snapshot | None = None
        self._started_tracing = False
        self.stopped_s = 0.0

    def open(self, target: Path) -> None:
        self._target, self._samples, self._steps = target, [], []
        self._samples.append((time.time_ns(), resident_bytes()))
        if self._options.tracemalloc:
            import tracemalloc

            self._started_tracing = not tracemalloc.is_tracing()
            if self._started_tracing:
                tracemalloc.start()
            self._before = tracemalloc.take_snapshot()
        self._stop = threading.Event()
        self._thread = threading.Thread(
            target=self._sample, args=(self._stop,), name="rlprof-memory", daemon=True
        )
        self._thread.start()

    def entered(self, step: int) -> None:
        self._steps.append((step, time.time_ns()))

    def _sample(self, stop: threading.Event) -> None:
        while not stop.wait(self._options.interval_ms / 1000):
            self._samples.append((time.time_ns(), resident_bytes()))

    def halt(self) -> None:
        """Take the last sample: what comes until `close` is not of the window."""
        if self._thread is not None and not self._stop.is_set():
            self._stop.set()
            self._thread.join(timeout=10)
            self.stopped_s = time.monotonic()
            self._samples.append((time.time_ns(), resident_bytes()))

    def close(self) -> Path:
        target, self._target = self._target, None
        if target is None or self._thread is None:
            raise CaptureError("host memory was not sampled")
        self.halt()
        sizes = [size for _, size in self._samples]
        report = {
            "schema": 1,
            "pid": os.getpid(),
            "steps": [{"step": step, "begun_ns": begun} for step, begun in self._steps],
            "start_bytes": sizes[0],
            "end_bytes": sizes[-1],
            "peak_bytes": max(sizes),
            "samples": self._samples,
            "grown": self._grown(),
        }
        with gzip.open(target, "wt", encoding="utf-8", compresslevel=6) as packed:
            json.dump(report, packed)
        return target

    def _grown(self) -> list[dict[str, str | int]]:
        """The lines of Python that hold more than at the window's start, largest first."""
        before, self._before = self._before, None
        if before is None:
            return []
        import tracemalloc

        after = tracemalloc.take_snapshot()
        if self._started_tracing:
            tracemalloc.stop()
        top = after.compare_to(before, "lineno")[: self._options.tracemalloc]
        return [
            {
                "file": entry.traceback[0].filename,
                "line": entry.traceback[0].lineno,
                "grown_bytes": entry.size_diff,
                "bytes": entry.size,
                "blocks": entry.count,
            }
            for entry in top
        ]


def resident_bytes() -> int:
    """This process's resident set size; where /proc is missing, its highest so far."""
    try:
        with open("/proc/self/statm", encoding="ascii") as statm:
            return int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        import resource

        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak if sys.platform == "darwin" else peak * 1024
