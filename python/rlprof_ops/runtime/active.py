"""The profiler of a process in which something was asked: gates, captures, ranges, and a safe end."""

from __future__ import annotations

import atexit
import contextlib
import functools
import os
import threading
import time
import weakref
from collections.abc import Iterator, Sequence
from typing import Any

from rlprof_ops.runtime import ranges, signals
from rlprof_ops.runtime.captures import Captures
from rlprof_ops.runtime.events import EventLog, StepFile, log
from rlprof_ops.runtime.null import NULL_CONTEXT
from rlprof_ops.runtime.place import Place

_LOCK_TIMEOUT_S = 5.0


class Profiler:
    """Opens and closes the windows of one process. Made by `profiler.from_env`; `specs` are the matching `CaptureSpec`s."""

    def __init__(self, place: Place, specs: Sequence[Any]) -> None:
        self.place = place
        self.active = False  # a window is open: ranges are recorded
        self._pid = os.getpid()
        self._lock = threading.RLock()
        self._events = EventLog(place.events / f"{place.stem}.jsonl")
        self._step_file: Any = StepFile(place.events / f"{place.stem}.step")
        self._last_step = 0
        self._step_times_ns: dict[str, list[int]] = {}
        self._emitters: tuple[Any, ...] = ()
        self._nvtx: Any = None
        self._step_tokens: list[tuple[Any, Any]] = []
        self._closed = False
        self._working = False
        self._terminated = False
        self._events.write(
            "registered",
            worker=place.worker,
            rank=place.rank,
            world_size=place.world_size,
            pid=place.pid,
            host=place.host,
            backends=sorted({spec.backend for spec in specs}),
        )
        self._captures = Captures(place, specs, self._events)
        self._quiet = self._captures.quiet_around(0) if self._captures else (-(2**62), 2**62)
        self._at_exit = functools.partial(_close_weakly, weakref.ref(self))
        atexit.register(self._at_exit)
        self._signals = signals.on_terminate(self._on_terminate)
        _forget_in_children(self)

    # -- steps

    def step(self, step: int) -> _Step:
        """`with prof.step(n):` around training step `n`, counted from 1."""
        return _Step(self, step)

    def start_step(self, step: int) -> None:
        """Step `step` begins; for trainers with callbacks. Calling it again for the same step changes nothing."""
        self._last_step = step
        self._step_file.store(step)
        low, high = self._quiet
        if low <= step < high:
            return
        with self._work():
            self._enter(step)

    def stop_step(self, step: int | None = None) -> None:
        """Step `step` (default: the one begun last) ended in order."""
        step = self._last_step if step is None else step
        low, high = self._quiet
        if low <= step < high:
            return
        with self._work():
            self._leave(step)

    def abort_step(self) -> None:
        """The step failed: what is open is closed as it is and marked partial."""
        if self.active:
            with self._work():
                self._end_step_ranges()
                self._captures.close_all()
                self._settle()

    def _enter(self, step: int) -> None:
        if self._closed or self._step_times_ns.get(str(step), [0, 0])[-1:] == [-1]:
            return  # begun already
        self._end_step_ranges()
        self._captures.enter(step)
        self._settle()
        if self.active:
            self._step_times_ns[str(step)] = [time.time_ns(), -1]
            name = f"step {step}"
            self._step_tokens = [(emitter, emitter.start(name)) for emitter in self._emitters]

    def _leave(self, step: int) -> None:
        times = self._step_times_ns.get(str(step))
        if times and times[1] == -1:
            times[1] = time.time_ns()
        self._end_step_ranges()
        self._captures.leave(step)
        self._settle(step + 1)

    def _settle(self, next_step: int | None = None) -> None:
        """After a change of windows: which ranges to emit, and how long nothing can happen."""
        self.active = self._captures.any_open
        self._emitters = self._choose_emitters() if self.active else ()
        probe = self._last_step if next_step is None else next_step
        self._quiet = (probe, probe) if self.active or self._closed else self._captures.quiet_around(probe)

    def _end_step_ranges(self) -> None:
        tokens, self._step_tokens = self._step_tokens, []
        for emitter, token in reversed(tokens):
            try:
                emitter.end(token)
            except Exception as error:
                log(f"a {emitter.kind} range did not end: {error}")

    # -- ranges

    def range(self, name: str) -> Any:
        """`with prof.range("generation"):`; recorded only while a window is open."""
        if not self.active:
            return NULL_CONTEXT
        return _Range(self._emitters, name)

    def annotate(self, name: Any = None) -> Any:
        """`@prof.annotate("train")`, or bare for the function's own name. The function runs exactly once, its exceptions are its own."""
        if callable(name):
            return self._annotated(name, name.__qualname__)
        return lambda function: self._annotated(function, name or function.__qualname__)

    def _annotated(self, function: Any, name: str) -> Any:
        from rlprof_ops.runtime.annotate import annotated

        return annotated(self, function, name)

    def _choose_emitters(self) -> tuple[Any, ...]:
        open_backends = self._captures.open_backends
        chosen: list[Any] = []
        if "nsight" in open_backends:
            chosen.append(self._nvtx_emitter())
        if "torch" in open_backends:
            chosen.append(ranges.RecordFunctionRanges())
        return tuple(emitter for emitter in chosen if emitter is not None)

    def _nvtx_emitter(self) -> Any:
        if self._nvtx is None:
            self._nvtx = ranges.nvtx_ranges() or False
            if self._nvtx is False:
                reason = "neither the package nvtx nor torch.cuda.nvtx is there: reports will hold no ranges"
                log(reason)
                self._events.write("no_ranges", reason=reason)
        return self._nvtx or None

    # -- the end

    def close(self) -> None:
        """Close what is open, and say that this process ended in order. Calling it again changes nothing."""
        if self._closed or os.getpid() != self._pid:
            return
        if not self._lock.acquire(timeout=_LOCK_TIMEOUT_S):
            log("another thread holds the profiler: its windows stay open")
            return
        try:
            if self._closed:
                return
            self._closed = True
            self._end_step_ranges()
            self._captures.close_all()
            self._settle()
            self._events.write("ended", last_step=self._last_step, step_times_ns=self._ended_steps())
        finally:
            self._lock.release()
            atexit.unregister(self._at_exit)
            self._signals.remove()

    def _ended_steps(self) -> dict[str, list[int]]:
        now = time.time_ns()
        return {step: [start, now if end == -1 else end] for step, (start, end) in self._step_times_ns.items()}

    @contextlib.contextmanager
    def _work(self) -> Iterator[None]:
        """Opening or closing windows: one thread at a time, and a SIGTERM meanwhile waits until the report is in place."""
        with self._lock:
            self._working = True
            try:
                yield
            finally:
                self._working = False
        if self._terminated:
            self.close()
            self._signals.deliver()

    def _on_terminate(self) -> bool:
        """Whether the process may go on to die. Runs in the main thread, between any two bytecodes of it."""
        if self._working and self._lock._is_owned():  # type: ignore[attr-defined]
            self._terminated = True
            return False
        self.close()
        return True

    def _forget(self) -> None:
        """In a forked child: the windows belong to the parent, whatever the child does."""
        self._lock = threading.RLock()
        self._closed = True
        self.active = False
        self._emitters = ()
        self._step_tokens = []
        self._step_file = _NoStepFile()
        self._captures = Captures.none()
        self._quiet = (-(2**62), 2**62)
        self._signals.remove()

    def __enter__(self) -> Profiler:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()


class _NoStepFile:
    def store(self, step: int) -> None:
        return None


class _Step:
    """One step as a context manager. An exception ends the open windows and goes on its way."""

    __slots__ = ("_profiler", "_step")

    def __init__(self, profiler: Profiler, step: int) -> None:
        self._profiler = profiler
        self._step = step

    def __enter__(self) -> None:
        self._profiler.start_step(self._step)

    def __exit__(self, kind: Any, error: Any, _: Any) -> None:
        if kind is not None:
            self._profiler.abort_step()
        self._profiler.stop_step(self._step)


class _Range:
    """One open range on every emitter of the window. An emitter that fails is left out, the body never notices."""

    __slots__ = ("_emitters", "_name", "_tokens")

    def __init__(self, emitters: tuple[Any, ...], name: str) -> None:
        self._emitters = emitters
        self._name = name
        self._tokens: list[tuple[Any, Any]] = []

    def __enter__(self) -> None:
        for emitter in self._emitters:
            try:
                self._tokens.append((emitter, emitter.start(self._name)))
            except Exception as error:
                log(f"a {emitter.kind} range did not start: {error}")

    def __exit__(self, *_: Any) -> None:
        while self._tokens:
            emitter, token = self._tokens.pop()
            try:
                emitter.end(token)
            except Exception as error:
                log(f"a {emitter.kind} range did not end: {error}")


def _close_weakly(reference: weakref.ref[Profiler]) -> None:
    profiler = reference()
    if profiler is not None:
        profiler.close()


def _forget_in_children(profiler: Profiler) -> None:
    reference = weakref.ref(profiler)

    def forget() -> None:
        found = reference()
        if found is not None:
            found._forget()

    os.register_at_fork(after_in_child=forget)
