"""Simulated ranks that meet in collectives, of known truth: what each tells once a minute, as a job's do."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from rlprof_ops.recorder.detect.anomaly import Anomaly
from rlprof_ops.recorder.job_view import JobView
from rlprof_ops.recorder.news import News
from rlprof_ops.recorder.samples.step_marks import ToldStep
from rlprof_ops.runtime.marks import Now
from rlprof_ops.runtime.on_demand.arrivals import EVERY_S, Call, MetGroup, packed
from rlprof_ops.runtime.ranges.phase_times import Phase
from tests.recorder.simulated import BEGIN_NS

_KEPT = 400  # fewer than PyTorch's 2000, to be quick
_MOST_CALLS = 1_000_000  # of a trainer
_EVERY_NS = int(EVERY_S * 1e9)
WORKER, WORLD = "policy_worker", "12345678"


@dataclass
class Ranks:
    """`ranks` on `nodes`, each rank's work in a collective's turn `turn_s` with noise. `slow`: rank -> times.

    `noise`: white, ar (0.8 from step to step), bursts (a rank takes twice as long in a tenth of its steps).
    `skew_s`: of nodes' clocks at most. `ahead`: hosts that run ahead and meet at the end of a step. `tells`:
    ranks tell steps. `extra_s`: what rank 0 does alone at the end of each step. `first_s`: what the first
    step takes longer, after its collectives. `stages`: the second half of the ranks is a longer stage of a
    pipeline, which the first half sends to. `slow_from`: the first step in which `slow` ranks are.
    `trainer`: how many the processes had before, with the same collectives; it begins at `begin_ns`.
    """

    seed: int
    ranks: int = 8
    nodes: int = 1
    turns: int = 12
    turn_s: float = 0.4
    idle_s: float = 2.0
    noise: str = "white"
    sigma: float = 0.06
    slow: dict[int, float] = field(default_factory=dict)
    slow_in: str = ""
    slow_from: int = 1
    trainer: int = 0
    begin_ns: int = BEGIN_NS
    skew_s: float = 0.0
    ahead: bool = False
    tells: bool = True
    extra_s: float = 0.0
    first_s: float = 0.0
    tensor: int = 0
    stages: bool = False
    rng: random.Random = field(init=False)

    def __post_init__(self) -> None:
        self.rng = random.Random(self.seed)
        self.own = [self.rng.gauss(0, 0.02) for _ in range(self.ranks)]
        self.level = [self.rng.gauss(0, self.sigma) for _ in range(self.ranks)]
        self.clock = [int(self.rng.uniform(-1, 1) * self.skew_s * 1e9) for _ in range(self.nodes)]
        self.backend = "ucc" if self.ahead else "gloo"
        everyone = tuple(range(self.ranks))
        if self.stages:
            self.slow = dict.fromkeys(everyone[self.ranks // 2 :], 1.4)
        self.groups = [MetGroup("0", "default_pg", self.backend, everyone)]
        if self.tensor:
            self.groups += [
                MetGroup(str(first), "tp", self.backend, everyone[first : first + self.tensor])
                for first in range(0, self.ranks, self.tensor)
            ]

    def node(self, rank: int) -> int:
        return rank * self.nodes // self.ranks

    def factors(self) -> list[float]:
        """Of one step, by rank."""
        found = []
        for rank in range(self.ranks):
            if self.noise == "ar":
                self.level[rank] = 0.8 * self.level[rank] + 0.6 * self.rng.gauss(0, self.sigma)
                one = self.rng.gauss(1 + self.level[rank], 0.02)
            else:
                one = self.rng.lognormvariate(0, self.sigma)
            if self.noise == "bursts" and self.rng.random() < 0.1:
                one *= 2.0
            found.append(one * (1 + self.own[rank]))
        return found

    def steps(self) -> Iterator[tuple[list[ToldStep], list[list[Call]]]]:
        """Step by step: each rank's own row, and its calls; of the clock of its node."""
        at = [float(self.begin_ns)] * self.ranks
        sequences = [[self.trainer * _MOST_CALLS] * len(self.groups) for _ in range(self.ranks)]
        step = 0
        while True:
            step += 1
            begin = list(at)
            calls: list[list[Call]] = [[] for _ in range(self.ranks)]
            idle = self.idle_s * self.rng.uniform(0.8, 1.3)
            at = [t + idle * 1e9 for t in at]
            trains = list(at)
            factors = self.factors()
            for turn in range(self.turns):
                half = "logprob" if turn < self.turns // 2 else "train"
                if turn == self.turns // 2:
                    trains = list(at)
                for rank in range(self.ranks):
                    work = self.turn_s * factors[rank] * self.rng.lognormvariate(0, 0.03)
                    if step >= self.slow_from and self.slow_in in ("", half):
                        work *= self.slow.get(rank, 1.0)
                    at[rank] += work * 1e9
                for group in range(len(self.groups) - 1, -1, -1):
                    members = self.groups[group].members
                    if self.tensor and not group and turn % 4:
                        continue
                    for rank in members:
                        sequences[rank][group] += 1
                        calls[rank].append(Call(group, "all_reduce", sequences[rank][group], int(at[rank])))
                    if not self.ahead:
                        last = max(at[rank] for rank in members) + 0.002e9
                        at = [last if rank in members else t for rank, t in enumerate(at)]
                    else:
                        at = [t + 0.0002e9 if rank in members else t for rank, t in enumerate(at)]
            at = [max(at)] * self.ranks
            if self.stages:
                for rank in range(self.ranks):
                    calls[rank].append(Call(0, "", 0, int(at[rank])))
            at[0] += self.extra_s * 1e9
            at = [t + (self.first_s * 1e9 if step == 1 else 0) for t in at]
            for rank in range(self.ranks):
                sequences[rank][0] += 1
                calls[rank].append(Call(0, "barrier", sequences[rank][0], int(at[rank])))
            at = [max(at) + self.rng.uniform(0, 1e6) for _ in at]
            told = []
            for rank in range(self.ranks):
                shift = self.clock[self.node(rank)]
                calls[rank] = [call._replace(t_ns=call.t_ns + shift) for call in calls[rank]]
                middle, end = ((t[rank] - begin[rank]) / 1e9 for t in (trains, at))
                phases = {
                    "generation": Phase(1, 0.0, idle, idle),
                    "logprob": Phase(1, idle, middle - idle, middle - idle),
                    "train": Phase(1, middle, end - middle, end - middle),
                }
                begin_ns = int(begin[rank]) + shift
                phases = {} if self.ahead else phases
                who = WORKER, rank, 100 + rank, False
                told.append(ToldStep(*who, step, begin_ns, end, phases, self.trainer))
            yield told, calls


def watched(job: Ranks, minutes: int, view: JobView | None = None) -> list[Anomaly]:
    """What the head finds in so many looks."""
    view = view or JobView("1", [f"n{node}" for node in range(job.nodes)])
    kept: list[deque[Call]] = [deque(maxlen=_KEPT) for _ in range(job.ranks)]
    found: list[Anomaly] = []
    nodes = [f"n{job.node(rank)}" for rank in range(job.ranks)]
    nows = [
        Now(1, job.begin_ns, job.begin_ns, rank, job.ranks, 100 + rank, False, "", WORKER)
        for rank in range(job.ranks)
    ]

    def tell(rank: int, **more: Any) -> None:
        now = tuple(each for each in nows if nodes[each.rank] == nodes[rank] and job.tells)
        plain = News(nodes[rank], look_ns, None, (), (), now, (), (), {})
        found.extend(view.take(replace(plain, **more)))

    look_ns, looks = job.begin_ns - job.begin_ns % _EVERY_NS + _EVERY_NS, 0
    for told, calls in job.steps():
        while look_ns <= max(row.begin_ns + row.seconds * 1e9 for row in told) + job.skew_s * 1e9:
            for rank in range(job.ranks):
                seen = [call for call in calls[rank] if call.t_ns <= look_ns + job.clock[job.node(rank)]]
                here = [*kept[rank], *seen][-_KEPT:]
                tell(rank, arrivals=(packed(here, tuple(job.groups), WORLD, rank, look_ns, 100 + rank),))
            look_ns += _EVERY_NS
            looks += 1
            if looks == minutes:
                return found
        for rank, row in enumerate(told):
            kept[rank].extend(calls[rank])
            if job.tells:
                tell(rank, steps=(row,))
    return found
