"""Loops whose steps, or whose phases, overlap: asynchronous ones and one whose reward is streamed. Every
duration is known, and a change is made by simulating again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from tests.analyze.causes.loops import T0, Key, Loop, Times

MS = 1_000_000
WARM_UP = 4  # steps before the captured ones


@dataclass
class Asynchronous(Loop):
    """Rollout ranks go on to the next batch at once, as long as the weights are no more than `staleness`
    steps older than the batch's own; the policy trains on the oldest whole batch, and then publishes its
    weights. Each process numbers its steps by the batch. `pooled`: the policy waits for no whole batch, but
    trains on what came first of all that rollout ranks have made, as fully asynchronous trainers do.
    """

    staleness: int = 1
    pooled: bool = False

    def run(self, work: Mapping[Key, list[int]] | None = None) -> Times:
        work = self.work if work is None else work
        times = Times()
        published = dict.fromkeys(range(-self.staleness, 1), T0)
        free = dict.fromkeys(range(self.ranks["rollout"]), T0)
        made: list[int] = []
        last = WARM_UP + self.steps
        for step in range(1, last + 1):
            ahead = self.staleness if self.pooled else 0
            for batch in range(1 if step == 1 else step + ahead, step + ahead + 1):
                for rank in free:
                    key = (batch, "rollout", "generation", rank)
                    begin = max(free[rank], published[batch - 1 - self.staleness]) + self.wait[key]
                    times.begin[key], times.end[key] = begin, begin + work[key][0]
                    free[rank] = times.end[key]
                    made.append(free[rank])
            ready = sorted(made)[step * len(free) - 1] if self.pooled else max(free.values())
            at = {rank: max(ready, published[step - 1]) for rank in range(self.ranks["policy"])}
            for phase in ("train", "weight_sync"):
                keys = {rank: (step, "policy", phase, rank) for rank in at}
                for rank, key in keys.items():
                    times.begin[key] = at[rank] + self.wait[key]
                    at[rank] = times.begin[key] + work[key][0]
                at = dict.fromkeys(at, max(at.values()) + self.transfer_ns)
                for rank, key in keys.items():
                    arrived = times.begin[key] + work[key][0]
                    times.meetings[key] = [(arrived, at[rank])]
                    times.end[key] = at[rank]
            published[step] = max(at.values())
        first = WARM_UP + 1
        for step in range(first, first + self.steps):
            mine = [key for key in times.begin if key[0] == step]
            times.step[step] = (min(times.begin[k] for k in mine), max(times.end[k] for k in mine))
            for key in mine:
                low, high = times.own.get((key[1], key[3], step), (times.begin[key], times.end[key]))
                own = (min(low, times.begin[key]), max(high, times.end[key]))
                times.own[key[1], key[3], step] = own
        for key in [key for key in times.begin if not first <= key[0] <= last]:
            del times.begin[key], times.end[key]
            times.meetings.pop(key, None)
        return times

    def period(self, work: Mapping[Key, list[int]] | None = None) -> float:
        """Of the captured steps, ns."""
        ends = {key[0]: end for key, end in self.run(work).end.items() if key[2] == "weight_sync"}
        return (ends[max(ends)] - ends[min(ends)]) / (len(ends) - 1)


def asynchronous(
    seed: int,
    staleness: int = 1,
    steps: int = 6,
    noise: float = 0.03,
    pooled: bool = False,
    **means_ms: float,
) -> Asynchronous:
    """Bound by its training unless told otherwise."""
    usual = {"generation": 240.0, "train": 260.0, "weight_sync": 60.0} | means_ms
    loop = Asynchronous({"rollout": 3, "policy": 4}, (), steps, staleness=staleness, pooled=pooled)
    rng = np.random.default_rng(seed)
    for step in range(1, WARM_UP + steps + staleness * pooled + 1):
        for worker, phases in (("rollout", ["generation"]), ("policy", ["train", "weight_sync"])):
            for phase in phases:
                for rank in range(loop.ranks[worker]):
                    key = (step, worker, phase, rank)
                    loop.work[key] = [int(usual[phase] * MS * (1 + noise * rng.standard_normal()))]
                    loop.wait[key] = int(rng.integers(MS // 10, MS))
    return loop


@dataclass
class Streamed(Loop):
    """Each rollout rank hands its answers over in `parts`, and the scorer judges each as it comes; training
    waits for the last judgement. `open_range`: the scorer marks all of its reward at once.
    """

    parts: int = 6
    open_range: bool = False

    def run(self, work: Mapping[Key, list[int]] | None = None) -> Times:
        work = self.work if work is None else work
        now, times = T0, Times()
        for step in range(1, self.steps + 1):
            begun, handed = now, []
            for rank in range(self.ranks["rollout"]):
                key = (step, "rollout", "generation", rank)
                times.begin[key] = at = now + self.wait[key]
                for part in work[key]:
                    at += part
                    handed.append(at)
                times.end[key] = at
            key = (step, "scorer", "reward", 0)
            calls = []
            free = now
            for at, length in zip(sorted(handed), work[key], strict=True):
                free = max(free, at) + length
                calls.append((free - length, free))
            times.begin[key], times.end[key] = calls[0][0], free
            times.calls[key] = [(calls[0][0], free)] if self.open_range else calls
            now = free
            for phase in ("train", "weight_sync"):
                over = now
                for rank in range(self.ranks["policy"]):
                    key = (step, "policy", phase, rank)
                    times.begin[key] = now + self.wait[key]
                    times.end[key] = times.begin[key] + work[key][0]
                    over = max(over, times.end[key])
                now = over
            now += self.tail_ns
            times.step[step] = (begun, now)
        return times


def streamed(
    seed: int, steps: int = 6, noise: float = 0.03, open_range: bool = False, judging_ms: float = 12
) -> Streamed:
    """Generation of about 400 ms of a step of 720."""
    loop = Streamed({"rollout": 3, "scorer": 1, "policy": 4}, (), steps, open_range=open_range)
    rng = np.random.default_rng(seed)

    def around(mean_ms: float) -> int:
        return max(int(mean_ms * MS * (1 + noise * rng.standard_normal())), 1000)

    for step in range(1, steps + 1):
        for rank in range(loop.ranks["rollout"]):
            loop.work[step, "rollout", "generation", rank] = [around(65) for _ in range(loop.parts)]
            loop.wait[step, "rollout", "generation", rank] = int(rng.integers(MS // 10, MS))
        calls = loop.parts * loop.ranks["rollout"]
        loop.work[step, "scorer", "reward", 0] = [around(judging_ms) for _ in range(calls)]
        for phase, mean in (("train", 230), ("weight_sync", 60)):
            for rank in range(loop.ranks["policy"]):
                loop.work[step, "policy", phase, rank] = [around(mean)]
                loop.wait[step, "policy", phase, rank] = int(rng.integers(MS // 10, MS))
    return loop
