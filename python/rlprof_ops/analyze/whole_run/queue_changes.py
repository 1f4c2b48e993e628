"""What a length limit, better balance or another replica would have saved, by replay of the queue."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean, stdev

import numpy as np

from rlprof_ops.analyze.whole_run.replay_queue import ReplayedRequest, Speed, fit_speed, least, replay
from rlprof_ops.analyze.whole_run.run_data import QueueChange, QueueReplay
from rlprof_ops.runtime.request_log import EngineRequest

MOST_REPLAYED = 12  # steps
_MOST_REQUESTS = 5_000  # of all of them; one step is replayed in any case
_LEAST_REQUESTS = 20  # that tell a replica's own speed
_LIMITS = (0.95, 0.99)  # shares of the answers that are shorter
_ORDERS = 4  # in which requests that came at once are dealt out
_MOST_ERROR = 0.2  # of the step, beyond which a replay tells nothing
_WAITED_S = 0.02
_CROWDED = 0.8  # of the most that ran at a time


@dataclass(frozen=True)
class StepOfReplica:
    """The requests of one replica that were done in one step, in the order of their ends."""

    worker: str
    begin_ns: int
    rows: Sequence[EngineRequest]


_Step = list[ReplayedRequest]  # of all replicas of the worker


def replay_of(steps: Sequence[Sequence[StepOfReplica]]) -> QueueReplay | None:
    """Of the worker that made most tokens; None where its requests tell no speed."""
    made: dict[str, int] = defaultdict(int)
    for each in (part for step in steps for part in step):
        made[each.worker] += sum(row.tokens for row in each.rows)
    worker = max(made, key=made.__getitem__, default=None)
    if worker is None or not made[worker]:
        return None
    jobs = [_jobs([part for part in step if part.worker == worker]) for step in steps]
    jobs = _bounded([step for step in jobs if step])
    count = sum(part.worker == worker for part in steps[0])
    halves = [_speeds(jobs[1::2] or jobs, count), _speeds(jobs[::2], count)]
    if halves[0] is None or halves[1] is None:
        return None
    # the rates of a step are those of steps that are not it
    pairs = [(step, halves[number % 2] or []) for number, step in enumerate(jobs)]
    measured = [max(job.end_s for job in step) - _begin_s(step) for step in jobs]
    replayed = [replay(step, speeds[:-1]) - _begin_s(step) for step, speeds in pairs]
    slots = [speed.at_a_time for speed in halves[0][:-1]]
    limited = [slot for slot in slots if slot < 1 << 30]

    error = float(np.mean(np.abs(np.subtract(replayed, measured))))

    def change(
        kind: str, value: int, ends: Sequence[float], spread: float = 0.0, **lost: float
    ) -> QueueChange:
        saved = fmean(replayed) - fmean(ends)
        return QueueChange(
            kind=kind,
            value=value,
            saves_ms=round(1e3 * saved, 1),
            share=round(saved / max(fmean(replayed), 1e-9), 4),
            error_ms=round(1e3 * math.hypot(error, spread), 1),
            **{name: round(share, 4) for name, share in lost.items()},
        )

    def dealt(kind: str, value: int) -> QueueChange:
        """Requests that came at once are dealt out in several orders; how far these lie apart is an error."""
        ends = [_dealt_s(step, speeds[:value]) for step, speeds in pairs]
        spread = fmean(stdev(of) if len(of) > 1 else 0.0 for of in ends)
        return change(kind, value, list(map(fmean, ends)), spread)

    changes = []
    tokens = np.array([job.tokens for step in jobs for job in step])
    for limit in sorted({int(np.quantile(tokens, share, method="inverted_cdf")) for share in _LIMITS}):
        over = tokens > limit
        if over.any() and limit > 0:
            ends = [replay(step, speeds[:-1], limit) - _begin_s(step) for step, speeds in pairs]
            lost = float((tokens[over] - limit).sum() / tokens.sum())
            changes.append(change("length_limit", limit, ends, cut=float(over.mean()), tokens_lost=lost))
    if count > 1:
        changes.append(dealt("balance", count))
    changes.append(dealt("replicas", count + 1))
    most = 1e3 * _MOST_ERROR * fmean(measured)
    return QueueReplay(
        worker=worker,
        replicas=count,
        steps=len(jobs),
        requests=len(tokens),
        measured_ms=round(1e3 * fmean(measured), 1),
        replayed_ms=round(1e3 * fmean(replayed), 1),
        error_ms=round(1e3 * error, 1),
        at_a_time=round(float(np.median(limited))) if limited else None,
        changes=[each for each in changes if each.error_ms <= most],
    )


def _dealt_s(step: _Step, speeds: Sequence[Speed]) -> list[float]:
    """How long a step takes when each request goes to the replica that has least left, in several orders
    where some came at once.
    """
    orders = _ORDERS if len({job.arrival_s for job in step}) < len(step) else 1
    return [replay(step, speeds, deal=least, by_chance=n) - _begin_s(step) for n in range(orders)]


def _begin_s(step: _Step) -> float:
    """When the first request of a step came."""
    return min(job.arrival_s for job in step if job.after is None)


def _bounded(steps: list[_Step]) -> list[_Step]:
    kept: list[_Step] = []
    left = _MOST_REQUESTS
    for step in steps:
        if not kept or len(step) <= left:
            kept.append(step)
            left -= len(step)
    return kept


def _speeds(steps: Sequence[_Step], count: int) -> list[Speed] | None:
    """Of each replica, and last of one like them; None where nothing is told."""
    mine = [[[job for job in step if job.replica == number] for step in steps] for number in range(count)]
    like = fit_speed([jobs for of in mine for jobs in of])
    if like is None:
        return None
    found = []
    for of in mine:
        own = fit_speed(of) if sum(map(len, of)) >= _LEAST_REQUESTS else None
        found.append(own or like)
    return [*found, like]


def _jobs(parts: Sequence[StepOfReplica]) -> _Step:
    found: _Step = []
    for replica, part in enumerate(parts):
        if part.rows:
            found += _of_replica(replica, part, len(found))
    return found


def _of_replica(replica: int, part: StepOfReplica, offset: int) -> _Step:
    def seconds(at_ns: int) -> float:
        return (at_ns - part.begin_ns) / 1e9

    begins = [row.scheduled_ns or row.first_token_ns or row.arrival_ns for row in part.rows]
    starts, ends = np.sort(np.array(begins)), np.array([row.finished_ns for row in part.rows])
    running = [
        int(np.searchsorted(starts, begin, "right") - np.searchsorted(ends, begin, "right"))
        for begin in begins
    ]
    crowded = _CROWDED * max(running)
    turns: dict[str, list[int]] = defaultdict(list)
    for place, row in enumerate(part.rows):
        turns[row.first or row.id].append(place)
    before = {
        later: earlier
        for places in turns.values()
        for earlier, later in pairwise(places)
        if part.rows[later].first and part.rows[later].arrival_ns >= part.rows[earlier].finished_ns
    }
    found = []
    for place, (row, begin) in enumerate(zip(part.rows, begins, strict=True)):
        wait = (begin - row.arrival_ns) / 1e9
        told = row.scheduled_ns is not None
        waited = wait >= _WAITED_S and begin >= ends[0] and (told or running[place] >= crowded)
        first = max(row.first_token_ns or begin, begin)
        after = before.get(place)
        came = row.arrival_ns if after is None else row.arrival_ns - part.rows[after].finished_ns
        found.append(
            ReplayedRequest(
                replica=replica,
                arrival_s=seconds(came) if after is None else came / 1e9,
                delay_s=-1.0 if waited else max(0.0, wait),
                prefill_s=(first - begin) / 1e9,
                tokens=row.tokens,
                by_prefill=int(row.first_token_ns is not None and row.tokens > 0),
                begin_s=seconds(begin),
                first_s=seconds(first),
                end_s=max(seconds(row.finished_ns), seconds(first)),
                after=None if after is None else offset + after,
            )
        )
    return found
