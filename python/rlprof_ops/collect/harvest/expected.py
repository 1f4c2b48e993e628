"""Expands a request over the world that was observed: every capture that should have ended in a report."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from rlprof_ops.backends import report_names
from rlprof_ops.backends.window_support import TRAINER
from rlprof_ops.collect.event_logs import ProcessLog
from rlprof_ops.collect.harvest.run_state import Observed
from rlprof_ops.collect.job_state import CaptureCounts
from rlprof_ops.host import foreign
from rlprof_ops.job.end_cause import EndCause
from rlprof_ops.request import Capture, CaptureSpec, Window, first_match, server_of
from rlprof_ops.words import closest


@dataclass(frozen=True, slots=True)
class Planned:
    """A capture that was asked; `problem` says why it could never be taken (no such worker, no such rank).
    `asked_by`: the id of one that was asked while the job ran.
    """

    capture: Capture
    spec: CaptureSpec
    problem: str = ""
    asked_by: str = ""

    @property
    def key(self) -> tuple[str | None, str | None, int | None, int | None, str | None]:
        """What its reports have too."""
        capture = self.capture
        return report_names.window_key(
            capture.backend, capture.worker, capture.rank, capture.window.start, capture.phase
        )


def planned(observed: Observed) -> Iterator[Planned]:
    """All captures, by worker, rank and window. Unknown open ends are cut at the last step that the rank
    entered.
    """
    request = observed.request
    if not request:
        return
    for worker, count in observed.world.items():
        for rank in range(count):
            for spec in request.for_worker(worker, rank):
                if _in_its_servers(spec, observed, worker, rank):
                    continue
                for window in _windows(spec, observed, worker, rank):
                    for phase in _phases(spec, observed, worker):
                        yield Planned(Capture(spec.backend, worker, rank, window, phase), spec)
    for spec in request.captures:
        if spec:
            yield from _impossible(spec, observed)


def asked_meanwhile(observed: Observed, triggered: Iterable[dict[str, Any]]) -> Iterator[Planned]:
    """What was asked while the job ran, on demand or by a `when`: each window that a process has told of, and
    each capture of a `when` that no process has answered. `triggered`: the rows of `recorder/captures.jsonl`.
    """
    answered = set()
    for log in observed.logs:
        for event in log.windows:
            answered.add(event.asked_by)
            if event.asked_by in ("", TRAINER) or not 0 < event.start < (event.stop or event.start + 1):
                continue
            capture = Capture(event.backend, log.worker, log.rank, event.window, event.phase)
            yield Planned(capture, CaptureSpec(event.backend), asked_by=event.asked_by)
    for row in () if observed.running else triggered:
        identity, step = foreign.text(row.get("id")), foreign.whole(row.get("step"))
        number = report_names.trigger_number(identity) or 0
        if (
            identity in answered
            or step is None
            or step < 0
            or not 0 < number <= len(observed.request.captures)
        ):
            continue
        answered.add(identity)
        spec = observed.request.captures[number - 1]
        logs = [log for log in observed.logs if spec.matches(log.worker)]
        reached = max((log.last_step or 0 for log in logs), default=0)
        if observed.driver.exit_code == 0 and logs and reached <= step + 1:
            continue  # training was over: no step began after it was asked
        capture = Capture(spec.backend, ",".join(spec.workers), None, Window(step + 1, step + 2))
        yield Planned(capture, spec, _not_taken(spec, logs, observed), identity)


def _not_taken(spec: CaptureSpec, logs: list[ProcessLog], observed: Observed) -> str:
    """Why no process has answered a capture of a `when`; empty where nothing tells it."""
    if not logs:
        return "; ".join(_nobody(pattern, observed) for pattern in spec.workers)
    if not any(log.on_demand for log in logs):
        return f"{logs[0].worker} does not listen: the job was started with RLPROF_ON_DEMAND=0"
    return ""


def _in_its_servers(spec: CaptureSpec, observed: Observed, worker: str, rank: int) -> bool:
    """Whether an inner worker of an engine is inside its server's session, whose reports hold it."""
    logs = observed.logs_of(worker, rank) if server_of(worker) else []
    return bool(logs) and all(spec.backend not in log.backends for log in logs)


def _windows(spec: CaptureSpec, observed: Observed, worker: str, rank: int) -> tuple[Window, ...]:
    windows = spec.windows()
    if not spec.steps.is_open or spec.each != "phase":
        return windows
    steps = [log.last_step for log in observed.logs_of(worker, rank) if log.last_step]
    cut = spec.windows(max(steps)) if steps else ()
    return cut if any(window.start >= windows[-1].start for window in cut) else (*cut, windows[-1])


def _phases(spec: CaptureSpec, observed: Observed, worker: str) -> tuple[str | None, ...]:
    """In phase mode the phases that any rank of the worker was seen in; one unnamed when none was."""
    if spec.each != "phase":
        return (None,)
    seen = {
        event.phase
        for log in observed.logs
        if log.worker == worker
        for event in log.windows
        if event.backend == spec.backend and event.phase is not None
    }
    return tuple(sorted(seen)) or (None,)


def _impossible(spec: CaptureSpec, observed: Observed) -> Iterator[Planned]:
    for pattern in spec.workers:
        matching = [worker for worker in observed.world if first_match(worker, (pattern,)) is not None]
        if not matching:
            for window in spec.windows():
                yield Planned(Capture(spec.backend, pattern, None, window), spec, _nobody(pattern, observed))
        for worker in matching:
            for rank in spec.ranks or ():
                if rank >= observed.world[worker]:
                    count = observed.world[worker]
                    problem = (
                        f"rank {rank} does not exist: {worker} has {count} rank{'s' if count != 1 else ''}, 0"
                        f" to {count - 1}"
                    )
                    for window in spec.windows():
                        yield Planned(Capture(spec.backend, worker, rank, window), spec, problem)


_KEEPS_THE_PATH = "; a COMMAND that sets PYTHONPATH has to keep the job's (PYTHONPATH=/mine:$PYTHONPATH)"


def _nobody(pattern: str, observed: Observed) -> str:
    seen = list(observed.world)
    if not seen:
        if not observed.cause:
            return "no worker registered"
        said = f"no worker registered before the job ended ({observed.detail or observed.cause})"
        return said + _KEEPS_THE_PATH if observed.cause == EndCause.DRIVER_EXIT else said
    near = closest(pattern.strip("*?"), seen, cutoff=0.3)
    return (
        f"no worker matched pattern {pattern!r} (seen: {', '.join(seen[:8])}{', …' if len(seen) > 8 else ''}"
        + (f"; nearest: {near})" if near else ")")
    )


def count_captures(observed: Observed) -> CaptureCounts:
    """From the events that have come so far: which windows of the plan have closed, are open, or failed."""
    states = {
        (log.worker, log.rank, event.backend, event.start): event.event
        for log in observed.logs
        for event in log.windows
    }
    if not observed.request:
        return CaptureCounts(0)
    if not observed.world:
        return CaptureCounts()
    wanted = {_key_of(item.capture) for item in planned(observed) if not item.problem}
    found = [states[key] for key in wanted if key in states]
    return CaptureCounts(
        len(wanted) or None, found.count("closed"), found.count("opened"), found.count("failed")
    )


def _key_of(capture: Capture) -> tuple[str, int | None, str, int]:
    return capture.worker, capture.rank, capture.backend, capture.window.start
