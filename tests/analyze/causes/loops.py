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
    """`plan`: the phases in order, each with the workers that do it at once; those in `beside` begin together
    with the one before. `work[key]` is how long the rank takes, a list between collectives where it meets
    others; `wait[key]` the time until it is told to begin. `skew_ns`: how far the clocks of some hosts are
    ahead. `lost`: ranks without a report.
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
    beside: frozenset[str] = frozenset()
    skew_ns: Mapping[str, int] = field(default_factory=dict)
    lost: frozenset[tuple[str, int]] = frozenset()

    def run(self, work: Mapping[Key, list[int]] | None = None) -> Times:
        """When everything began and ended, with these durations."""
        work = self.work if work is None else work
        now, times = T0, Times()
        for step in range(1, self.steps + 1):
            begun = begin = now
            for phase, workers in self.plan:
                begin = begin if phase in self.beside else now
                over = now
                for worker in workers:
                    keys = [(step, worker, phase, rank) for rank in range(self.ranks[worker])]
                    at = {key: begin + self.wait[key] for key in keys}
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
        every = [(worker, rank) for worker, count in self.ranks.items() for rank in range(count)]
        return [self._summary(times, *who) for who in every if who not in self.lost]

    def merged(self) -> Merged:
        return merge(self.summaries())

    def length(self, work: Mapping[Key, list[int]] | None = None) -> int:
        step = self.run(work).step
        return step[self.steps][1] - step[1][0]

    def _summary(self, times: Times, worker: str, rank: int) -> Summary:
        host = f"n{rank // self.ranks_a_node}"
        times = times.later(self.skew_ns.get(host, 0))
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

    def later(self, ns: int) -> Times:
        """As a clock has it that is so far ahead."""

        def spans(found: list[tuple[int, int]]) -> list[tuple[int, int]]:
            return [(begin + ns, end + ns) for begin, end in found]

        return Times(
            {key: at + ns for key, at in self.begin.items()},
            {key: at + ns for key, at in self.end.items()},
            {key: spans(found) for key, found in self.meetings.items()},
            {step: spans([span])[0] for step, span in self.step.items()},
            {key: spans(found) for key, found in self.calls.items()},
            {key: spans([span])[0] for key, span in self.own.items()},
        )


PLAN = (
    ("generation", ("rollout",)),
    ("reward", ("scorer",)),
    ("train", ("policy",)),
    ("weight_sync", ("policy", "rollout")),
)
MEANS = {
    "generation": 400_000,
    "reward": 60_000,
    "ref_logprob": 60_000,
    "train": 300_000,
    "weight_sync": 80_000,
}


def usual_loop(
    seed: int, rollout: int = 3, policy: int = 4, steps: int = 5, noise: float = 0.02, collectives: int = 3
) -> Loop:
    """Generation, reward, training with collectives, weight sync; times normal about their means."""
    loop = Loop({"rollout": rollout, "scorer": 1, "policy": policy}, PLAN, steps)
    _fill(loop, seed, noise, collectives, MEANS)
    return loop


def branched_loop(seed: int, noise: float = 0.02, steps: int = 6, **means_us: int) -> Loop:
    """As `usual_loop`, and while the answers are scored a reference model computes their log-probabilities,
    which takes about as long: whichever ends last is what training waits for.
    """
    plan = (PLAN[0], PLAN[1], ("ref_logprob", ("reference",)), *PLAN[2:])
    ranks = {"rollout": 4, "scorer": 1, "reference": 2, "policy": 4}
    loop = Loop(ranks, plan, steps, beside=frozenset({"ref_logprob"}))
    _fill(loop, seed, noise, 3, MEANS | {name: 1000 * us for name, us in means_us.items()})
    return loop


def _fill(loop: Loop, seed: int, noise: float, collectives: int, means: Mapping[str, int]) -> None:
    rng = np.random.default_rng(seed)
    for step in range(1, loop.steps + 1):
        for phase, workers in loop.plan:
            for worker in workers:
                for rank in range(loop.ranks[worker]):
                    pieces = collectives + 1 if phase == "train" else 1
                    each = means[phase] / pieces * (1 + noise * rng.standard_normal(pieces))
                    loop.work[step, worker, phase, rank] = [max(int(x), 2000) for x in each]
                    loop.wait[step, worker, phase, rank] = int(rng.integers(500, 3000))
