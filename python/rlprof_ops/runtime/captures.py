"""The captures of one process: which specs can be taken here, their gates, and what the manifest is told about each."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlprof_ops import backends
from rlprof_ops.backends import nsight
from rlprof_ops.backends import torch as torch_backend
from rlprof_ops.runtime.events import EventLog, log
from rlprof_ops.runtime.gate import NEVER, OpenWindow, StepGate
from rlprof_ops.runtime.place import Place
from rlprof_ops.runtime.takers import CaptureError, NsightTaker, Taker, TorchTaker, move_into_place

NOT_WRAPPED = (
    "this process was not started by `nsys launch` (RLPROF_NSYS_SESSION is not set): the runtime-env plugin was not "
    "loaded on this node, or the actor was created without profiler.runtime_env(...) in its runtime_env"
)


@dataclass
class _Capture:
    """One spec that this process can take, or cannot (`impossible` says why)."""

    spec: Any
    taker: Taker | None
    impossible: str | None
    gate: StepGate
    target: Path | None = None


class Captures:
    """All captures of a process, opened and closed by steps. No method raises for a profiler's failure."""

    def __init__(self, place: Place, specs: Sequence[Any], events: EventLog) -> None:
        self._place = place
        self._events = events
        self._logged: set[str] = set()
        self._all = [self._prepare(spec, specs) for spec in specs]

    @classmethod
    def none(cls) -> Captures:
        """No captures, for a forked child."""
        empty = cls.__new__(cls)
        empty._all = []
        return empty

    def __bool__(self) -> bool:
        return bool(self._all)

    def _prepare(self, spec: Any, specs: Sequence[Any]) -> _Capture:
        taker: Taker | None = None
        impossible: str | None = None
        if spec.backend == "nsight":
            session = os.environ.get("RLPROF_NSYS_SESSION")
            if session:
                taker = NsightTaker(session, spec)
            else:
                impossible = os.environ.get("RLPROF_NOT_WRAPPED") or NOT_WRAPPED
        elif spec.backend == "torch":
            impossible = _second_cupti_user(specs)
            taker = None if impossible else TorchTaker(spec)
        else:
            impossible = f"the backend {spec.backend!r} cannot be taken inside a training process yet"
        capture = _Capture(spec, taker, impossible, StepGate((), lambda _: None, lambda *_: None))
        capture.gate = StepGate(
            spec.steps.windows(),
            lambda window, capture=capture: self._open(capture, window),  # type: ignore[misc]
            lambda window, partial, capture=capture: self._close(capture, window, partial),  # type: ignore[misc]
        )
        return capture

    # -- steps

    def enter(self, step: int) -> None:
        # What ends is ended before what begins: two windows of one profiler may be neighbours.
        for capture in self._all:
            current = capture.gate.current
            if current and current.window is not capture.gate.window_of(step):
                capture.gate.close(partial=True)
        for capture in self._all:
            capture.gate.enter(step)

    def leave(self, step: int) -> None:
        for capture in reversed(self._all):
            capture.gate.leave(step)

    def close_all(self) -> None:
        """End every open window before its last step ended: partial, unless it was to go on until the end anyway."""
        for capture in reversed(self._all):
            current = capture.gate.current
            if current:
                capture.gate.close(partial=current.window.stop is not None)

    def quiet_around(self, step: int) -> tuple[int, int]:
        """The half-open range of steps around `step` in which nothing opens or closes."""
        low, high = -NEVER, NEVER
        for capture in self._all:
            one_low, one_high = capture.gate.quiet_around(step)
            low, high = max(low, one_low), min(high, one_high)
        return low, high

    @property
    def any_open(self) -> bool:
        return any(capture.gate.current for capture in self._all)

    @property
    def open_backends(self) -> set[str]:
        return {capture.spec.backend for capture in self._all if capture.gate.current}

    # -- one window

    def _open(self, capture: _Capture, window: OpenWindow) -> None:
        if capture.taker is None:
            self._failed(capture, window, capture.impossible or "")
            return
        report = self._place.report_name(window.window, window.phase, capture.taker.suffix)
        try:
            if self._other_open(capture):
                raise CaptureError(f"another {capture.spec.backend} window is open in this process")
            self._place.tmp.mkdir(parents=True, exist_ok=True)
            capture.target = self._place.tmp / report
            capture.taker.open(capture.target)
        except (CaptureError, OSError) as error:
            self._failed(capture, window, _reason(error))
            return
        self._events.write("opened", **_of(capture, window), report=report)

    def _other_open(self, capture: _Capture) -> bool:
        return any(
            other is not capture and other.spec.backend == capture.spec.backend and other.gate.current and other.target
            for other in self._all
        )

    def _close(self, capture: _Capture, window: OpenWindow, partial: bool) -> None:
        target, capture.target = capture.target, None
        if capture.taker is None or target is None:
            return
        try:
            finished = capture.taker.close()
            self._refuse_unfinished(capture, finished)
            final = self._place.report_path(capture.spec.backend, target.name)
            size_bytes = move_into_place(finished, final)
        except (CaptureError, OSError) as error:
            self._failed(capture, window, _reason(error))
            return
        self._events.write(
            "closed",
            **_of(capture, window),
            report=target.name,
            path=os.path.relpath(final, self._place.root),
            size_bytes=size_bytes,
            partial=partial,
            seen=sorted(set(window.seen)),
        )

    def _refuse_unfinished(self, capture: _Capture, finished: Path) -> None:
        found = backends.get(capture.spec.backend).check(finished)
        if found.state != backends.OK:
            raise CaptureError(f"the report is {found.state}: {found.reason} ({finished})")

    def _failed(self, capture: _Capture, window: OpenWindow, reason: str) -> None:
        capture.target = None
        capture.gate.drop()
        self._events.write("failed", **_of(capture, window), reason=reason)
        if reason not in self._logged:  # a profiler that fails at every window is told of once
            self._logged.add(reason)
            log(f"{capture.spec.backend} capture of {self._place.worker} rank {self._place.rank} failed, training goes on: {reason}")


def _of(capture: _Capture, window: OpenWindow) -> dict[str, Any]:
    return {
        "backend": capture.spec.backend,
        "steps": [window.window.start, window.window.stop],
        "phase": window.phase,
    }


def _second_cupti_user(specs: Sequence[Any]) -> str | None:
    """CUPTI serves one profiler a process; nsys, injected at start, was first."""
    other = next((spec for spec in specs if spec.backend == "nsight" and nsight.traces_cuda(spec)), None)
    if other is None or not torch_backend.has_cuda_activity():
        return None
    return "nsys already traces CUDA in this process and CUPTI serves one profiler only: ask for one of nsight and torch, or `t: nvtx`"


def _reason(error: Exception) -> str:
    if isinstance(error, OSError) and not isinstance(error, CaptureError):
        where = f" ({error.filename})" if error.filename else ""
        return f"{error.strerror or error}{where}"
    return str(error)
