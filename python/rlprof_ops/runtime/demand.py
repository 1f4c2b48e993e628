"""How one process answers a capture on demand: whether it is meant, by which profiler, and for how long."""

from __future__ import annotations

import os
from typing import Any

from rlprof_ops.runtime.control import Demand, Watcher
from rlprof_ops.runtime.events import log


def spec_for(demand: Demand, worker: str, rank: int, next_step: int | None = None) -> Any | None:
    """The `CaptureSpec` of `demand` for this process, None when it is not meant. `next_step`: the first step to take."""
    from rlprof_ops.request import CaptureSpec, Steps, Window

    backend = demand.backend
    if backend == "auto":
        backend = "nsight" if os.environ.get("RLPROF_NSYS_SESSION") else "torch"
    options = dict(demand.options)
    if backend == "torch" and demand.seconds is not None:
        options["all_threads"] = "true"  # it is started and stopped beside the training thread
    start = next_step or 1
    steps = Steps.of([Window(start, start + demand.next_steps if demand.next_steps else None)])
    spec = CaptureSpec(backend=backend, workers=demand.workers, ranks=demand.ranks, steps=steps, options=options)
    return spec if spec.matches(worker, rank) else None


def answer(profiler: Any, watcher: Watcher, demand: Demand) -> None:
    """Take `demand` in this process, if it is meant. Runs in the watcher's thread."""
    place = profiler.place
    if spec_for(demand, place.worker, place.rank) is None:
        return
    log(f"capture {demand.id} of {place.worker} rank {place.rank} was asked for")
    if demand.seconds is None:
        profiler._at_next_step(lambda step: _take_steps(profiler, demand, step))
        return
    capture = profiler._open_now(spec_for(demand, place.worker, place.rank), demand.id)
    watcher.later(demand.seconds, lambda: profiler._close_now(capture))


def _take_steps(profiler: Any, demand: Demand, step: int) -> None:
    spec = spec_for(demand, profiler.place.worker, profiler.place.rank, step)
    profiler._captures.add(spec, asked_by=demand.id).gate.enter(step)
