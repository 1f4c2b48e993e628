"""What another queue would have made of a step's requests: each keeps its length, its arrival and its
prefill, and makes tokens as fast as its replica did with as many requests at a time.

A replica serves what comes first, as many at a time as it was seen to; all that run are equally fast.
"""

from __future__ import annotations

import heapq
import itertools
import random
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from rlprof_ops.analyze.whole_run.records import Floats

_ROUNDS = 60  # of fitting the rates; they are still by then
_A_DOUBLING = 2  # bins of how many run at a time
_DONE = 1e-6  # of a token: less is rounding
_PLENTY = 1 << 30  # as many at a time as there are


@dataclass(frozen=True)
class ReplayedRequest:
    """One request. `after`: the place of the turn before it in the list, `arrival_s` is then from its end."""

    replica: int
    arrival_s: float
    delay_s: float  # from its arrival to its begin; below 0: it waited for a place
    prefill_s: float
    tokens: int
    by_prefill: int  # of them, when its prefill is done
    begin_s: float  # as measured, from here on
    first_s: float
    end_s: float
    after: int | None = None


@dataclass(frozen=True)
class Speed:
    """Tokens a second of one request, by how many run at a time; `at_a_time`: at most so many."""

    running: Floats
    tokens_s: Floats
    at_a_time: int = _PLENTY
    known: dict[int, float] = field(default_factory=dict, compare=False)

    def of(self, running: int) -> float:
        """Beyond what was seen: no faster with fewer, and no more tokens in all with more."""
        found = self.known.get(running)
        if found is None:
            slower = max(1.0, running / float(self.running[-1]))
            found = float(np.interp(running, self.running, self.tokens_s)) / slower
            self.known[running] = found
        return found


def fit_speed(steps: Sequence[Sequence[ReplayedRequest]]) -> Speed | None:
    """The speed of one replica from its requests in some steps; None where they tell none."""
    parts = [_time_by_running(jobs) for jobs in steps if jobs]
    made = np.array([job.tokens - job.by_prefill for jobs in steps for job in jobs], np.float64)
    if not parts:
        return None
    width = max(times.shape[1] for times, _, _ in parts)
    times = np.concatenate([np.pad(part, ((0, 0), (0, width - part.shape[1]))) for part, _, _ in parts])
    sums, counts = (
        np.sum([np.pad(each[n], (0, width - len(each[n]))) for each in parts], axis=0) for n in (1, 2)
    )
    seen = times.sum(axis=0) > 0
    useful = times.sum(axis=1) > 0
    times, made = times[useful][:, seen], made[useful]
    if not times.size or not made.sum():
        return None
    rates = np.full(times.shape[1], made.sum() / times.sum())
    for _ in range(_ROUNDS):  # the likeliest rates, should tokens come by chance at them
        rates *= (times * (made / np.maximum(times @ rates, 1e-12))[:, None]).sum(axis=0) / times.sum(axis=0)
    rates = _falling(np.maximum(rates, 1e-6), times.sum(axis=0))
    running = (sums / np.maximum(counts, 1e-12))[seen]
    return Speed(running, rates, _at_a_time(steps))


def _time_by_running(jobs: Sequence[ReplayedRequest]) -> tuple[Floats, Floats, Floats]:
    """(requests, bins): how long each made tokens while so many ran; for each bin the time, by how many ran,
    and the time.
    """
    begins, ends = np.array([job.begin_s for job in jobs]), np.array([job.end_s for job in jobs])
    firsts = np.array([job.first_s for job in jobs])
    edges = np.unique(np.concatenate([begins, firsts, ends]))
    running = np.searchsorted(np.sort(begins), edges[:-1], side="right") - np.searchsorted(
        np.sort(ends), edges[:-1], side="right"
    )
    lengths = np.diff(edges)
    bins = np.round(_A_DOUBLING * np.log2(np.maximum(running, 1))).astype(np.int64)
    count = int(bins.max()) + 1 if len(bins) else 1
    times, sums, whole = np.zeros((len(jobs), count)), np.zeros(count), np.zeros(count)
    for each in range(count):
        mine = np.where((bins == each) & (running > 0), lengths, 0.0)
        upto = np.concatenate([[0.0], np.cumsum(mine)])
        times[:, each] = np.interp(ends, edges, upto) - np.interp(firsts, edges, upto)
        sums[each], whole[each] = (mine * running).sum(), mine.sum()
    return times, sums, whole


def _falling(rates: Floats, weights: Floats) -> Floats:
    """The nearest rates that do not rise with more requests (pool adjacent violators)."""
    pools: list[tuple[float, float, int]] = []
    for rate, weight in zip(rates.tolist(), weights.tolist(), strict=True):
        pools.append((rate, weight, 1))
        while len(pools) > 1 and pools[-1][0] > pools[-2][0]:
            (rate_a, weight_a, count_a), (rate_b, weight_b, count_b) = pools[-2:]
            whole = weight_a + weight_b
            pools[-2:] = [((rate_a * weight_a + rate_b * weight_b) / whole, whole, count_a + count_b)]
    return np.concatenate([np.full(count, rate) for rate, _, count in pools])


def _at_a_time(steps: Sequence[Sequence[ReplayedRequest]]) -> int:
    """How many ran when a request that had to wait began; no limit where hardly any waited."""
    found, count = [], 0
    for jobs in steps:
        begins, ends = (np.sort([getattr(job, name) for job in jobs]) for name in ("begin_s", "end_s"))
        count += len(jobs)
        for job in jobs:
            if job.delay_s < 0:
                found.append(
                    int(np.searchsorted(begins, job.begin_s, "right"))
                    - int(np.searchsorted(ends, job.begin_s, "right"))
                )
    return max(1, round(float(np.median(found)))) if len(found) > 0.05 * count else _PLENTY


@dataclass
class _Replica:
    """One replica at `now_s`: who waits, who is in prefill, who makes tokens. `made`: by each that has made
    tokens from the begin on; who is done when it reaches that of theirs.
    """

    speed: Speed
    now_s: float = 0.0
    made: float = 0.0
    waiting: deque[int] = field(default_factory=deque)
    prefill: list[tuple[float, int]] = field(default_factory=list)
    decode: list[tuple[float, int]] = field(default_factory=list)
    left: float = 0.0  # tokens of all that it has, as dealt
    version: int = 0

    @property
    def running(self) -> int:
        return len(self.prefill) + len(self.decode)

    def rate(self) -> float:
        return self.speed.of(max(1, self.running))

    def advance(self, to_s: float) -> None:
        if self.decode:
            self.made += (to_s - self.now_s) * self.rate()
        self.now_s = to_s

    def next_s(self) -> float:
        """When something happens next by itself."""
        found = self.prefill[0][0] if self.prefill else float("inf")
        if self.decode:
            found = min(found, self.now_s + max(0.0, self.decode[0][0] - self.made) / self.rate())
        return found


def replay(
    jobs: Sequence[ReplayedRequest],
    speeds: Sequence[Speed],
    limit: float = float("inf"),
    deal: Callable[[ReplayedRequest, Sequence[float]], int] | None = None,
    by_chance: int = 0,
) -> float:
    """When the last request is done. `limit`: tokens of an answer at most; `deal`: the replica of a first
    turn by the tokens that each replica has left, else the measured one; `by_chance`: another order of
    those that came at once for each number above 0.
    """
    replicas = [_Replica(speed) for speed in speeds]
    place = [job.replica for job in jobs]
    later: dict[int, list[int]] = {}
    for number, job in enumerate(jobs):
        if job.after is not None:
            later.setdefault(job.after, []).append(number)
    order = itertools.count()
    events: list[
        tuple[float, int, int, int]
    ] = []  # time, order, replica or -1 for an arrival, job or version
    # those that came at once are served in the order in which they were
    chance = random.Random(by_chance)
    drawn = [chance.random() if by_chance else job.begin_s for job in jobs]
    for number in sorted(range(len(jobs)), key=lambda n: (jobs[n].arrival_s, drawn[n])):
        if jobs[number].after is None:
            heapq.heappush(events, (jobs[number].arrival_s, next(order), -1, number))
    end = 0.0

    def tokens(number: int) -> float:
        return max(0.0, min(jobs[number].tokens, limit) - jobs[number].by_prefill)

    def start(replica: _Replica) -> None:
        while replica.waiting and replica.running < replica.speed.at_a_time:
            number = replica.waiting.popleft()
            ready = replica.now_s + max(0.0, jobs[number].delay_s) + jobs[number].prefill_s
            heapq.heappush(replica.prefill, (ready, number))

    def settle(replica: _Replica, number: int) -> None:
        start(replica)
        replica.version += 1
        heapq.heappush(events, (replica.next_s(), next(order), number, replica.version))

    while events:
        at_s, _, number, what = heapq.heappop(events)
        if number < 0:
            job = jobs[what]
            if deal is not None and job.after is None:
                place[what] = deal(job, [each.left for each in replicas])
            elif job.after is not None:
                place[what] = place[job.after]
            replica = replicas[place[what]]
            replica.advance(max(at_s, replica.now_s))
            replica.waiting.append(what)
            replica.left += tokens(what)
            settle(replica, place[what])
            continue
        replica = replicas[number]
        if what != replica.version or at_s == float("inf"):
            continue
        replica.advance(at_s)
        while replica.prefill and replica.prefill[0][0] <= at_s:
            _, done = heapq.heappop(replica.prefill)
            heapq.heappush(replica.decode, (replica.made + tokens(done), done))
        while replica.decode and replica.decode[0][0] <= replica.made + _DONE:
            _, done = heapq.heappop(replica.decode)
            replica.left -= tokens(done)
            end = max(end, at_s)
            for turn in later.get(done, ()):
                heapq.heappush(events, (at_s + jobs[turn].arrival_s, next(order), -1, turn))
        settle(replica, number)
    return end


def least(_: ReplayedRequest, left: Sequence[float]) -> int:
    """The replica that has the fewest tokens left to make: the lengths are known to it."""
    return min(range(len(left)), key=left.__getitem__)
