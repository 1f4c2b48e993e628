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
from typing import TYPE_CHECKING, Any, ClassVar

from rlprof_ops.backends.contract import CaptureError, Options
from rlprof_ops.backends.memory import memory_options
from rlprof_ops.backends.memory.memory_options import NEEDS_CUDA, MemoryOptions, parse
from rlprof_ops.host.after_import import after_import
from rlprof_ops.host.log_line import log_once
from rlprof_ops.host.threads.own_thread import OwnThread

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

    suffix = memory_options.SUFFIX

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


class _Tracing:
    """Who has tracemalloc on: there is one in a process. To the program it is off while it is on for us
    alone; where the program starts or stops it, the lines of ours end there.
    """

    _on: ClassVar[_Tracing | None] = None  # the latest that was

    def __init__(self, most_lines: int) -> None:
        self._most_lines = most_lines
        self._module: ModuleType | None = None
        self._ours = False
        self._calling = False  # one of ours
        self._before: Snapshot | None = None
        self._replaced: dict[str, tuple[Any, Any]] = {}  # a function's name -> the module's, ours
        self._lines: list[dict[str, str | int]] = []
        self.cut_short = ""

    def begin(self) -> None:
        """Take what holds memory now. Raises RuntimeError where it cannot be traced."""
        if not self._most_lines:
            return
        import tracemalloc

        self._module, self._lines, self.cut_short = tracemalloc, [], ""
        self._ours = not tracemalloc.is_tracing()
        if self._ours:
            _Tracing._on = self
            tracemalloc.start()
        try:
            self._before = tracemalloc.take_snapshot()
        except BaseException:
            if self._ours:
                tracemalloc.stop()
            raise
        self._follow("start", "began its own tracing of")
        self._follow("stop", "ended the tracing of")
        self._replace("is_tracing", lambda before: not self._hidden and before())

    @property
    def _hidden(self) -> bool:
        return self._ours and not self._calling

    @classmethod
    def stop_in_child(cls) -> None:
        """A forked process has nothing of ours: traced on, each of its allocations would cost time and
        memory.
        """
        if cls._on is not None and cls._on._ours and cls._on._module is not None:
            cls._on._ours, cls._on._before = False, None
            cls._on._module.stop()

    def _follow(self, name: str, what: str) -> None:
        def call(before: Any, *arguments: Any, **named: Any) -> Any:
            if self._before is not None and (self._ours or name == "stop"):
                self._cut(f"the program {what} memory: the lines that grew are those until there")
            return before(*arguments, **named)

        self._replace(name, call)

    def _replace(self, name: str, call: Any) -> None:
        before = getattr(self._module, name)
        ours = functools.wraps(before)(functools.partial(call, before))
        self._replaced[name] = before, ours
        setattr(self._module, name, ours)

    def _cut(self, reason: str) -> None:
        """The program is about to start or to stop: leave it what it would have found without us."""
        try:
            self._compare()
        except Exception as error:
            reason = f"{reason}, and they cannot be told: {error}"
        self.cut_short = reason

    def _compare(self) -> None:
        """The lines of Python that hold more than at the window's start, largest first; ours is off then."""
        before, self._before = self._before, None
        if before is None or self._module is None:
            return
        self._calling = True
        try:
            after = self._module.take_snapshot()
        finally:
            self._calling = False
            if self._ours:
                self._ours = False
                self._replaced["stop"][0]()
        self._lines = [
            {
                "file": entry.traceback[0].filename,
                "line": entry.traceback[0].lineno,
                "grown_bytes": entry.size_diff,
                "bytes": entry.size,
                "blocks": entry.count,
            }
            for entry in after.compare_to(before, "lineno")[: self._most_lines]
        ]

    def end(self) -> list[dict[str, str | int]]:
        """The lines that grew, with tracing and its functions as the program has them."""
        try:
            self._compare()
        except RuntimeError as error:  # somebody has stopped it without the module's function
            self.cut_short = f"no lines that grew: {error}"
        finally:
            for name, (before, ours) in self._replaced.items():
                if getattr(self._module, name) is ours:
                    setattr(self._module, name, before)
            self._replaced.clear()
        return self._lines


os.register_at_fork(after_in_child=_Tracing.stop_in_child)


class HostMemoryRecorder:
    """Resident memory, sampled by a thread every `interval_ms`, and with `tracemalloc` the lines that grew
    most.

    `open` and `close` raise `CaptureError`.
    """

    suffix = memory_options.HOST_SUFFIX

    def __init__(self, options: MemoryOptions) -> None:
        self._options = options
        self._target: Path | None = None
        self._samples: list[tuple[int, int]] = []
        self._steps: list[tuple[int, int]] = []
        self._stop = threading.Event()
        self._thread: OwnThread | None = None
        self._tracing = _Tracing(options.tracemalloc)
        self.stopped_s = 0.0

    @property
    def cut_short(self) -> str:
        return self._tracing.cut_short

    def open(self, target: Path) -> None:
        self._target, self._samples, self._steps = target, [], []
        self._samples.append((time.time_ns(), resident_bytes()))
        self._tracing.begin()
        self._stop = threading.Event()
        try:
            self._thread = OwnThread(self._sample, self._stop).start()
        except RuntimeError:
            self._tracing.end()
            raise

    def entered(self, step: int) -> None:
        self._steps.append((step, time.time_ns()))

    def _sample(self, stop: threading.Event) -> None:
        while not stop.wait(self._options.interval_ms / 1000):
            self._samples.append((time.time_ns(), resident_bytes()))

    def halt(self) -> None:
        """Take the last sample: what comes until `close` is not of the window."""
        if self._thread is not None and not self._stop.is_set():
            self._stop.set()
            self._thread.join(10)
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
            "grown": self._tracing.end(),
        }
        with gzip.open(target, "wt", encoding="utf-8", compresslevel=6) as packed:
            json.dump(report, packed)
        return target


def resident_bytes() -> int:
    """This process's resident set size; where /proc is missing, its highest so far."""
    try:
        with open("/proc/self/statm", encoding="ascii") as statm:
            return int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        import resource

        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak if sys.platform == "darwin" else peak * 1024
