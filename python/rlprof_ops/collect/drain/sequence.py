"""The order of a drain, once for the supervisor and for salvage: which steps, and how long each may take."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from rlprof_ops.collect.drain import drain_steps
from rlprof_ops.collect.drain.drain_steps import DrainOutcome, Say
from rlprof_ops.window.output_dir import Folders, OutputDir

# How much of what is left a step may take, against the steps after it. `nsys stop` writes the reports, and an
# import is the slowest there is; what a step leaves is the next one's.
_WEIGHTS = {
    "close_windows": 30.0,
    "end_wrapped": 15.0,
    "wait_profilers": 10.0,
    "recover": 15.0,
    "other_nodes": 10.0,
    "end_driver": 8.0,
    "stop_ray": 8.0,
    "late_profilers": 4.0,
    "reap": 4.0,
    "late_recover": 6.0,
    "output_dir": 6.0,
    "last_sync": 25.0,
    "node_record": 4.0,
    "clear": 4.0,
}
_LEAST_S = 0.5


class Budget:
    """The seconds of a whole drain, divided by what is left to do.

    `hard_s` is when Slurm kills what is left: a step that still makes progress may go on beyond its share
    until its part of that.
    """

    def __init__(
        self, seconds: float, hard_s: float | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._clock = clock
        self._until = clock() + seconds
        self._hard = max(self._until, clock() + (hard_s if hard_s is not None else seconds))

    def left(self) -> float:
        return max(0.0, self._until - self._clock())

    def share(self, step: str) -> float:
        """Seconds for `step`: what is left, divided by its weight and the weights of the steps after it."""
        return max(_LEAST_S, self.left() * self._part(step))

    def most(self, step: str) -> float:
        """Seconds for `step` as long as it makes progress."""
        return max(self.share(step), (self._hard - self._clock()) * self._part(step))

    @staticmethod
    def _part(step: str) -> float:
        names = list(_WEIGHTS)
        return _WEIGHTS[step] / sum(_WEIGHTS[name] for name in names[names.index(step) :])


@dataclass(frozen=True)
class DrainStep:
    """One step of the drain; `run` takes the seconds it may take, and those it may take with progress."""

    name: str
    run: Callable[[float, float], DrainOutcome]


class DrainSequence:
    """The drain of one job on one node. Whoever runs it goes through `before_ray_stops`, stops Ray, goes
    through `after_ray_stopped`, makes the last pass of the sync, writes the record and clears the folder.

    `sessions`: whether there can be nsys sessions of ours. `output_dir`: the request's, "" for none.
    """

    def __init__(
        self,
        node_dir: Path,
        run_dir: Path,
        node: str,
        job: str,
        *,
        sessions: bool = True,
        gate_first_s: float = 2.0,
        output_dir: Folders = "",
        say: Say = print,
    ) -> None:
        self.node_dir, self.run_dir, self.node, self.job = node_dir, run_dir, node, job
        self._output_dir = OutputDir(output_dir, say)
        self._sessions, self._gate_first_s, self._say = sessions, gate_first_s, say
        self._recovered: tuple[str, ...] = ()
        self._failed: tuple[tuple[str, str], ...] = ()

    def before_ray_stops(self) -> Iterator[DrainStep]:
        """Close this job's windows, end what is wrapped in nsys, wait for profilers, bring reports home."""
        if self._sessions:
            close = partial(
                drain_steps.close_windows,
                self.node_dir,
                self.job,
                gate_first_s=self._gate_first_s,
                say=self._say,
            )
            yield DrainStep("close_windows", _timed(close))
        # Without a request too: a trainer may have its own nsight options.
        yield DrainStep(
            "end_wrapped", _timed(partial(drain_steps.end_wrapped, self.node_dir, self.job, say=self._say))
        )
        if self._sessions:
            yield self._wait("wait_profilers")
            yield self._recover("recover")

    def after_ray_stopped(self, spare: Callable[[], Iterable[int]] = tuple) -> Iterator[DrainStep]:
        """nsys writes some reports when their worker is gone; then end what is left of the job, but for the
        processes `spare`, and look for reports once more.
        """
        if self._sessions:
            yield self._wait("late_profilers")
        yield DrainStep("reap", lambda seconds, _: self.end_what_is_left(seconds, spare()))
        # Without a request too: what a trainer's own nsys has left must not be cleared away.
        yield self._recover("late_recover")
        if self._output_dir.folders:
            yield DrainStep("output_dir", self._copy_rest)

    def write_record(self, facts: Mapping[str, Any]) -> dict[str, Any]:
        """`nodes/<node>.json`; `cleared` in it says that the node folder may go. Raises OSError."""
        return drain_steps.write_node_record(
            self.node_dir, self.run_dir, self.node, facts, recovered=self._recovered, failed=self._failed
        )

    def clear(self, spare: Iterable[str] = ()) -> DrainOutcome:
        """Remove the node folder but for the folders `spare`; call it only with a record that says so."""
        return drain_steps.clear(self.node_dir, spare=spare, say=self._say)

    def _wait(self, name: str) -> DrainStep:
        return DrainStep(
            name, _timed(partial(drain_steps.wait_profilers, self.node_dir, self.job, say=self._say))
        )

    def end_what_is_left(self, seconds: float, spare: Iterable[int]) -> DrainOutcome:
        """End this job's processes on this node, but for `spare`."""
        grace_s = max(0.5, min(5.0, seconds / 2))
        return drain_steps.reap(self.job, self.node_dir, grace_s=grace_s, exclude=spare, say=self._say)

    def _copy_rest(self, seconds: float, _: float) -> DrainOutcome:
        """What came after its window goes to the request's output_dir too."""
        started = time.monotonic()
        self._output_dir.copy_rest(self.node_dir)
        self._output_dir.finish(seconds)
        return DrainOutcome("output_dir", time.monotonic() - started)

    def _recover(self, name: str) -> DrainStep:
        def run(seconds: float, most_s: float) -> DrainOutcome:
            phase = drain_steps.recover(self.node_dir, deadline_s=seconds, most_s=most_s, say=self._say)
            self._recovered += phase.done
            self._failed = phase.failed  # what failed before and is there still has failed again
            return phase

        return DrainStep(name, run)


def _timed(work: Callable[..., DrainOutcome]) -> Callable[[float, float], DrainOutcome]:
    return lambda seconds, most_s: work(deadline_s=seconds, most_s=most_s)
