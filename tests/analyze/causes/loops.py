"""Training loops simulated by hand, with every duration known: a driver that calls one phase after another on
all ranks and waits for them, ranks that meet in collectives. A change is made by simulating again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from rlprof_ops.analyze.metrics.collective_events import CollectiveEvents
from rlprof_ops.analyze.metrics.phases import Segment, stretches
from rlprof_ops.analyze.run.identity import ReportFile
from rlprof_ops.analyze.run.merge import Merged, merge
from rlprof_ops.analyze.run.process_summary import PhaseTime, StepTime, Summary

T0 = 1_790_857_026_000_000_000
Key = tuple[int, str, str, int]  # step, worker, phase, rank


@dataclass
class Loop:
    """`plan`: the phases in order, each with the workers that do it at once. `work[key]` is how long the rank
    takes, a list between collectives where it meets others; `wait[key]` the time until it is told to begin.
    """

    ranks: dict[str, int]
    plan: tuple[tuple[str, tuple[str, ...]], ...]
    steps: int
    work: dict[Key, list[int]] = field(default_factory=dict)
    wait: dict[Key, int] = field(default_factory=dict)
    transfer_ns: int = 700
    tail_ns: int = 900
    ranks_a_node: int = 1_000
    on_gpu: bool = False  # the collectives

    def run(self, work: Mapping[Key, list[int]] | None = None) -> Times:
        """When everything began and ended, with these durations."""
        work = self.work if work is None else work
        now, times = T0, Times()
        for step in range(1, self.steps + 1):
            begun = now
            for phase, workers in self.plan:
                over = now
                for worker in workers:
                    keys = [(step, worker, phase, rank) for rank in range(self.ranks[worker])]
                    at = {key: now + self.wait[key] for key in keys}
                    times.begin |= at
                    for piece in range(len(work[keys[0]])):
                        at = {key: at[key] + work[key][piece] for key in keys}
                        if piece + 1 < len(work[keys[0]]):
                            met = max(at.values()) + self.transfer_ns
                            for key in keys:
                                times.meetings.setdefault(key, []).append((at[key], met))
                            at = dict.fromkeys(keys, met)
                    times.end |= at
                    over = max(over, *at.values())
                now = over
            now += self.tail_ns
            times.step[step] = (begun, now)
        return times

    def summaries(self) -> list[Summary]:
        times = self.run()
        return [self._summary(times, w, r) for w, count in self.ranks.items() for r in range(count)]

    def merged(self) -> Merged:
        return merge(self.summaries())

    def length(self, work: Mapping[Key, list[int]] | None = None) -> int:
        step = self.run(work).step
        return step[self.steps][1] - step[1][0]

    def _summary(self, times: Times, worker: str, rank: int) -> Summary:
        keys = [key for key in times.begin if key[1] == worker and key[3] == rank]
        segments = [
            Segment(key[0], key[2], a, b)
            for key in keys
            for a, b in times.calls.get(key, [(times.begin[key], times.end[key])])
        ]
        met = sorted(m for key in keys for m in times.meetings.get(key, ()))
        events = CollectiveEvents(
            "all_reduce",
            self.on_gpu,
            np.array([a for a, _ in met], np.int64),
            np.array([b for _, b in met], np.int64),
            np.full(len(met), -1, np.int64),
        )
        pid = 100 * sorted(self.ranks).index(worker) + rank
        host = f"n{rank // self.ranks_a_node}"
        name = f"{worker}_rank{rank}_step1-{self.steps}_{host}_{pid}.pt.trace.json.gz"
        return Summary(
            report=ReportFile(name, "torch", worker, rank, host, pid, 1, self.steps + 1, None, 1),
            kind="torch", host=host, pid=pid, rank=rank, on_utc=True,
            events=1, damaged=0, truncated="", seconds=0.0,
            start=min(a for a, _ in times.step.values()), end=max(b for _, b in times.step.values()),
            details={},
            steps=tuple(
                StepTime(n, *times.own.get((worker, rank, n), span), True, None, None)
                for n, span in times.step.items()
            ),
            phases=tuple(
                PhaseTime(
                    step, phase, when.length, len(when),
                    sum(b - a for a, b in times.meetings.get((step, worker, phase, rank), ())),
                    None, None, when,
                )
                for step, _, phase, _ in keys
                for when in [stretches([s for s in segments if (s.step, s.phase) == (step, phase)])[phase]]
            ),
            drawn=tuple(segments), devices=(), kernels=(), ops=(), collectives=(), memory=(),
            collective_events=(events,) if met else (), collectives_seen=bool(met),
        )  # fmt: skip


@dataclass
class Times:
    begin: dict[Key, int] = field(default_factory=dict)
    end: dict[Key, int] = field(default_factory=dict)
    meetings: dict[Key, list[tuple[int, int]]] = field(default_factory=dict)
    step: dict[int, tuple[int, int]] = field(default_factory=dict)
    calls: dict[Key, list[tuple[int, int]]] = field(default_factory=dict)  # of a phase that pauses
    own: dict[tuple[str, int, int], tuple[int, int]] = field(default_factory=dict)  # worker, rank, step


PLAN = (
    ("generation", ("rollout",)),
    ("reward", ("scorer",)),
    ("train", ("policy",)),
    ("weight_sync", ("policy", "rollout")),
)
MEANS = {"generation": 400_000, "reward": 60_000, "train": 300_000, "weight_sync": 80_000}


def usual_loop(
    seed: int, rollout: int = 3, policy: int = 4, steps: int = 5, noise: float = 0.02, collectives: int = 3
) -> Loop:
    """Generation, reward, training with collectives, weight sync; times normal about their means."""
    rng = np.random.default_rng(seed)
    loop = Loop({"rollout": rollout, "scorer": 1, "policy": policy}, PLAN, steps)
    for step in range(1, steps + 1):
        for phase, workers in PLAN:
            for worker in workers:
                for rank in range(loop.ranks[worker]):
                    pieces = collectives + 1 if phase == "train" else 1
                    each = MEANS[phase] / pieces * (1 + noise * rng.standard_normal(pieces))
                    loop.work[step, worker, phase, rank] = [max(int(x), 2000) for x in each]
                    loop.wait[step, worker, phase, rank] = int(rng.integers(500, 3000))
    return loop
