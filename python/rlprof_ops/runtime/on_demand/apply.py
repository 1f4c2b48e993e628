"""How one process answers a capture on demand: whether it is meant, by which profiler, and for how long."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from rlprof_ops import backends
from rlprof_ops.runtime.on_demand.watcher import DUMPS, STACKS, CaptureRequest, Watcher
from rlprof_ops.runtime.process.event_log import log
from rlprof_ops.runtime.ranges.span import end_tokens
from rlprof_ops.window.gate import TimedGate

if TYPE_CHECKING:
    from rlprof_ops.request import CaptureSpec
    from rlprof_ops.runtime.active_profiler import Profiler
    from rlprof_ops.window.captures import ProcessCapture


def spec_for(
    demand: CaptureRequest, worker: str, rank: int, next_step: int | None = None
) -> CaptureSpec | None:
    """The `CaptureSpec` of `demand` for this process, None when it is not meant. `next_step`: the first
    step to take.
    """
    from rlprof_ops.request import CaptureSpec, Steps, Window

    backend = backends.answering(demand.backend)
    options = dict(demand.options)
    if demand.seconds is not None and backends.is_known(backend):
        options.update(backends.get(backend).timed_options)
    start = next_step or 1
    spec = CaptureSpec(
        backend=backend,
        workers=demand.workers,
        ranks=demand.ranks,
        steps=Steps.of([Window(start, start + demand.next_steps if demand.next_steps else None)]),
        options=options,
        flags=demand.flags,
    )
    return spec if spec.matches(worker, rank) else None


def answer(profiler: Profiler, watcher: Watcher, demand: CaptureRequest) -> None:
    """Take `demand` in this process, if it is meant. Runs in the watcher's thread."""
    place = profiler.place
    if demand.backend in (STACKS, DUMPS):  # of the supervisor, and of every process with a process group
        return
    spec = spec_for(demand, place.worker, place.rank)
    if spec is None or spec.backend in profiler.elsewhere:
        return
    log(f"capture {demand.id} of {place.worker} rank {place.rank} was asked for")
    if demand.seconds is None:
        _at_next_step(profiler, lambda step: _take_steps(profiler, demand, step))
        return
    capture = _open_now(profiler, spec, demand.id)
    watcher.later(demand.seconds, lambda: _close_now(profiler, capture))


def _at_next_step(profiler: Profiler, action: Callable[[int], None]) -> None:
    with profiler._work():
        profiler._pending.append(action)
        profiler._settle()


def _take_steps(profiler: Profiler, demand: CaptureRequest, step: int) -> None:
    spec = spec_for(demand, profiler.place.worker, profiler.place.rank, step)
    if spec is not None:
        profiler._captures.add(spec, asked_by=demand.id).gate.enter(step)


def _open_now(profiler: Profiler, spec: CaptureSpec, asked_by: str) -> ProcessCapture:
    """Open a window at once, whatever the training thread does; the capture that `_close_now` needs."""
    from rlprof_ops.request import Window

    with profiler._work():
        step = max(1, profiler._last_step)
        capture = profiler._captures.add(spec, asked_by=asked_by, timed=True)
        if isinstance(capture.gate, TimedGate):
            capture.gate.begin(Window(step, None), step)
        profiler._settle()
        for begun in range(step + 1, profiler._last_step + 1):  # while the window was being opened
            capture.gate.enter(begun)
    return capture


def _close_now(profiler: Profiler, capture: ProcessCapture) -> None:
    with profiler._work():
        end_tokens(profiler._step_tokens)
        capture.gate.close(partial=False)
        profiler._captures.remove(capture)
        profiler._settle()
