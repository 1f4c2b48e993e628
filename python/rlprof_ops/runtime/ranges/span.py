"""One range of training code while something records it."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from rlprof_ops.host.threads.time_limits import time_limits_wait
from rlprof_ops.runtime.process.event_log import log_once
from rlprof_ops.runtime.ranges.emitters import RangeEmitter

if TYPE_CHECKING:
    from rlprof_ops.runtime.active_profiler import Profiler

Tokens = list[tuple[RangeEmitter, object]]


class Span:
    """Opened by `prof.range` when a window, a phase capture or the metrics want it.

    What goes wrong in a profiler is logged once and the body never notices; what the body raises passes
    through.
    """

    __slots__ = ("_begun_s", "_name", "_opened", "_profiler", "_record", "_tokens")

    def __init__(self, profiler: Profiler, name: str) -> None:
        self._profiler = profiler
        self._name = name

    def __enter__(self) -> None:
        profiler = self._profiler
        self._opened = profiler._phase_begins(self._name)
        self._tokens = start_tokens(profiler._emitters, self._name)
        leader = profiler._leader
        self._record = leader.phase_begins(self._name) if leader is not None else None
        self._begun_s = time.perf_counter()

    def __exit__(self, kind: object, error: object, traceback: object) -> None:
        profiler = self._profiler
        if profiler._metrics is not None:
            profiler._metrics.add(self._name, time.perf_counter() - self._begun_s)
        if self._record is not None and profiler._leader is not None:
            profiler._leader.phase_ends(self._record)
        end_tokens(self._tokens)
        if self._opened:
            profiler._phase_ends(self._opened, partial=kind is not None)
        profiler.visit_own()


def start_tokens(emitters: Sequence[RangeEmitter], name: str) -> Tokens:
    """Begin `name` on every emitter; one that fails is left out."""
    tokens: Tokens = []
    if emitters:
        with time_limits_wait():
            for emitter in emitters:
                try:
                    tokens.append((emitter, emitter.start(name)))
                except Exception as error:
                    log_once(f"a {emitter.kind} range did not start: {error}")
    return tokens


def end_tokens(tokens: Tokens) -> None:
    """End what `start_tokens` began, last begun first."""
    if tokens:
        with time_limits_wait():
            while tokens:
                emitter, token = tokens.pop()
                try:
                    emitter.end(token)
                except Exception as error:
                    log_once(f"a {emitter.kind} range did not end: {error}")


class StepContext:
    """One step as a context manager; a second one of the same step inside it changes nothing."""

    __slots__ = ("_begun", "_profiler", "_step")

    def __init__(self, profiler: Profiler, step: int) -> None:
        self._profiler = profiler
        self._step = step

    def __enter__(self) -> None:
        self._begun = not self._profiler.is_in_step(self._step) and self._profiler.start_step(self._step)

    def __exit__(self, kind: object, error: object, traceback: object) -> None:
        if self._begun:
            if kind is not None:
                self._profiler.abort_step()
            self._profiler.stop_step(self._step)
