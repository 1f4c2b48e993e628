"""Generation request by request: the last ones of each step, and how even the replicas are.

A request belongs to the generation in which its last token was made; where the driver marks no generation,
to the step.
"""

from __future__ import annotations

import math
import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import msgspec
import numpy as np

from rlprof_ops.analyze.metrics.intervals import union
from rlprof_ops.analyze.whole_run import request_tracks
from rlprof_ops.analyze.whole_run.lengths import lengths
from rlprof_ops.analyze.whole_run.queue_changes import MOST_REPLAYED, StepOfReplica, replay_of
from rlprof_ops.analyze.whole_run.records import Integers, ProcessSteps
from rlprof_ops.analyze.whole_run.reward_calls import between_turns
from rlprof_ops.analyze.whole_run.rollout import DONE, Window
from rlprof_ops.analyze.whole_run.run_data import (
    Done,
    LateRequest,
    ReplicaRow,
    RequestTracks,
    RolloutRequests,
    StepRequests,
)
from rlprof_ops.analyze.whole_run.sample_groups import Sample, alone_ms, groups_of, samples_of, step_groups
from rlprof_ops.analyze.whole_run.tail import generation_windows
from rlprof_ops.host import foreign
from rlprof_ops.runtime.request_log import FOLDER, MOST_BYTES, EngineRequest

MOST_STEPS = 200  # in the report
LAST = 3  # requests of a step that are named
_MOST_REPLICAS = 256
_MOST_BYTES = 1 << 30  # of all files that are read
_CLOCKS_NS = 100_000_000  # by which an engine's node may be ahead of the driver's
_ROW = msgspec.json.Decoder(EngineRequest)


@dataclass(frozen=True)
class ReplicaRequests:
    """What one process of an engine told: its requests in the order in which they were done. `cut`: not
    all of them. `engine`: vllm or sglang.
    """

    worker: str
    rank: int
    node: str
    pid: int
    rows: Sequence[EngineRequest]
    begin_ns: Integers
    end_ns: Integers
    cut: bool = False
    engine: str = ""


class _Generation(NamedTuple):
    """One step's generation, Unix ns. What is done before `until` belongs to it: an engine's node may
    be ahead of the driver's, and the next generation may follow at once.
    """

    step: int
    begin: int
    end: int
    until: int


@dataclass(frozen=True)
class _Busy:
    """A replica in one step: its number, and shares of the phase."""

    replica: int
    requests: int
    tokens: int
    idle: float
    end: float


def read_replicas(root: Path) -> list[ReplicaRequests]:
    """Every engine of a run folder; lines that make no sense are left out."""
    found: list[ReplicaRequests] = []
    left = _MOST_BYTES
    for path in sorted(root.glob(f"nodes/*/{FOLDER}/*.jsonl")):
        try:
            raw = foreign.read_bytes(path, 2 * MOST_BYTES) if left > 0 else b""
        except (OSError, ValueError):
            continue
        left -= len(raw)
        found += _replica(raw, path.parent.parent.name, left)
    return found


def _replica(raw: bytes, node: str, left: int) -> Iterator[ReplicaRequests]:
    told = list(foreign.rows(b"\n".join(line for line in raw.splitlines() if line.startswith(b"{"))))
    first = next((row for row in told if row.get("event") == "requests"), None)
    if first is None:
        return
    rows = sorted(_rows(raw), key=lambda row: row.finished_ns)
    yield ReplicaRequests(
        foreign.text(first.get("worker")),
        foreign.whole(first.get("rank")) or 0,
        node,
        foreign.whole(first.get("pid")) or 0,
        rows,
        np.array([row.arrival_ns for row in rows], np.int64),
        np.array([row.finished_ns for row in rows], np.int64),
        left <= 0 or any(row.get("event") in ("full", "lost") for row in told),
        foreign.text(first.get("engine")),
    )


def _rows(raw: bytes) -> Iterator[EngineRequest]:
    for line in raw.splitlines():
        if line.startswith(b"["):
            try:
                yield _ROW.decode(line)
            except msgspec.MsgspecError:
                continue


def rollout_requests(driver: ProcessSteps, replicas: Sequence[ReplicaRequests]) -> RolloutRequests | None:
    """None where no engine told a request in any step."""
    told = [found for window in _generations(driver) if (found := _step(window, replicas)) is not None]
    if not told:
        return None
    steps = [row for row, _, _ in told]
    numbers = [row.step for row in steps]
    count = sum(row.requests for row in steps)
    worst = sorted(steps, key=lambda row: -(row.left[DONE.index(0.95)] or 0.0) * row.phase_ms)[:MOST_STEPS]
    return RolloutRequests(
        requests=count,
        outside=sum(len(replica.rows) for replica in replicas) - count,
        cut=any(replica.cut for replica in replicas),
        told=len(steps),
        phase_ms=round(float(np.mean([row.phase_ms for row in steps])), 1),
        step_ms=round(1e3 * float(driver.seconds[np.isin(driver.step, numbers)].mean()), 1),
        done=_done(steps),
        replicas=_replicas(replicas, [busy for _, every, _ in told for busy in every]),
        steps=sorted(worst, key=lambda row: row.step),
        lengths=lengths(
            [row for replica in replicas for row in replica.rows],
            [(each.step, each.begin, each.until) for each in _generations(driver)],
        ),
        turns=between_turns(samples for _, _, samples in told),
        replay=replay_of(_replayed(numbers, driver, replicas)),
        tracks=_tracks([row.step for row in worst], driver, replicas),
    )


def _tracks(
    steps: Sequence[int], driver: ProcessSteps, replicas: Sequence[ReplicaRequests]
) -> list[RequestTracks]:
    """Of the first of these steps, as long as there are not too many requests."""
    windows = {window[0]: window for window in _generations(driver)}
    found: list[RequestTracks] = []
    left = request_tracks.MOST_REQUESTS
    for step in steps[: request_tracks.MOST_STEPS]:
        if left <= 0:
            break
        mine = [
            ((of.worker, of.rank), row) for of in replicas for row in of.rows[_done_in(windows[step], of)]
        ]
        mine.sort(key=lambda pair: pair[1].finished_ns)
        found.append(request_tracks.tracks_of(windows[step][:3], mine, left))
        left -= len(mine)
    return found


def _replayed(
    steps: Sequence[int], driver: ProcessSteps, replicas: Sequence[ReplicaRequests]
) -> list[list[StepOfReplica]]:
    """The requests of steps that are spread over the run, of each replica."""
    windows = {window[0]: window for window in _generations(driver)}
    shown = np.linspace(0, len(steps) - 1, min(len(steps), MOST_REPLAYED)).astype(np.int64).tolist()
    return [
        [StepOfReplica(of.worker, windows[step][1], of.rows[_done_in(windows[step], of)]) for of in replicas]
        for step in dict.fromkeys(steps[place] for place in shown)
    ]


def request_steps(driver: ProcessSteps, replica: ReplicaRequests) -> list[int | None]:
    """The step of each request of a replica; None: done while no step generated."""
    found: list[int | None] = [None] * len(replica.rows)
    for window in _generations(driver):
        done = _done_in(window, replica)
        found[done] = [window[0]] * (done.stop - done.start)
    return found


def _generations(driver: ProcessSteps) -> list[_Generation]:
    windows: list[Window] = generation_windows(driver) or [
        (step, begin, begin + int(seconds * 1e9))
        for step, begin, seconds in zip(
            driver.step.tolist(), driver.begin_ns.tolist(), driver.seconds.tolist(), strict=True
        )
    ]
    next_begins = [*(begin for _, begin, _ in windows[1:]), sys.maxsize]
    return [
        _Generation(step, begin, end, min(end + _CLOCKS_NS, next_begin))
        for (step, begin, end), next_begin in zip(windows, next_begins, strict=True)
    ]


def _done_in(window: _Generation, replica: ReplicaRequests) -> slice:
    """Which of a replica's requests were done in one generation."""
    return slice(*np.searchsorted(replica.end_ns, (window.begin, window.until)).tolist())


def _step(
    window: _Generation, replicas: Sequence[ReplicaRequests]
) -> tuple[StepRequests, list[_Busy], list[Sample]] | None:
    """What was done in one window, what each replica had of it, and the samples of several turns."""
    step, begin, end, _ = window
    length = max(end - begin, 1)
    mine: list[tuple[EngineRequest, ReplicaRequests]] = []
    samples: list[Sample] = []
    busy: list[_Busy] = []
    for number, replica in enumerate(replicas):
        inside = _done_in(window, replica)
        if inside.stop > inside.start:
            starts, ends = replica.begin_ns[inside], replica.end_ns[inside]
            used = union(np.maximum(starts, begin), ends).length
            done = int(ends[-1]) - begin
            rows = replica.rows[inside]
            mine += [(row, replica) for row in rows]
            samples += samples_of(replica.worker, replica.rank, rows)
            tokens = sum(row.tokens for row in rows)
            busy.append(_Busy(number, len(rows), tokens, max(0.0, 1 - used / length), done / length))
        elif len(replica.rows) and replica.begin_ns[0] < begin and replica.end_ns[-1] > end:
            busy.append(_Busy(number, 0, 0, 1.0, 0.0))  # it is there, and got nothing
    if not mine:
        return None
    mine.sort(key=lambda pair: pair[0].finished_ns)
    ends = np.array([row.finished_ns for row, _ in mine], np.int64)
    of = {id(row): sample for sample in samples for row in sample.turns}
    groups = groups_of(samples)
    return (
        StepRequests(
            step=step,
            phase_ms=round(length / 1e6, 1),
            requests=len(mine),
            prompt_tokens=sum(row.prompt_tokens for row, _ in mine),
            tokens=sum(row.tokens for row, _ in mine),
            median_tokens=float(np.median([row.tokens for row, _ in mine])),
            left=[_left(ends, share, length) for share in DONE],
            longest=round(max(row.finished_ns - _begun_ns(row) for row, _ in mine) / length, 4),
            imbalance=_imbalance(busy, replicas),
            last=[_late(row, of[id(row)], groups) for row, _ in mine[: -LAST - 1 : -1]],
            groups=step_groups(groups),
        ),
        busy,
        [sample for sample in samples if len(sample.turns) > 1],
    )


def _begun_ns(row: EngineRequest) -> int:
    return row.scheduled_ns or row.first_token_ns or row.arrival_ns


def _left(ends: Integers, share: float, length: int) -> float | None:
    """The share of the phase between so many requests and the last one."""
    done = math.ceil(round(share * len(ends), 6))
    if len(ends) - done < 1:
        return None
    return round(min(1.0, int(ends[-1] - ends[done - 1]) / length), 4)


def _imbalance(busy: Sequence[_Busy], replicas: Sequence[ReplicaRequests]) -> float | None:
    """The largest one of any worker that has several replicas."""
    ends: dict[str, list[float]] = defaultdict(list)
    for each in busy:
        ends[replicas[each.replica].worker].append(each.end)
    found = [max(of) / (sum(of) / len(of)) for of in ends.values() if len(of) > 1 and any(of)]
    return round(max(found), 3) if found else None


def _late(row: EngineRequest, sample: Sample, groups: Sequence[Sequence[Sample]]) -> LateRequest:
    told = row.queued_ns is not None and row.scheduled_ns is not None
    group = next((each for each in groups if any(other is sample for other in each)), None)
    return LateRequest(
        id=row.id,
        worker=sample.worker,
        rank=sample.rank,
        prompt_tokens=row.prompt_tokens,
        tokens=row.tokens,
        queued_ms=round(((row.scheduled_ns or 0) - (row.queued_ns or 0)) / 1e6, 1) if told else None,
        ms=round((row.finished_ns - row.arrival_ns) / 1e6, 1),
        preemptions=row.preemptions,
        reason=row.reason,
        turn=row.turn,
        between_ms=sample.between_ms,
        answers=len(group) if group else None,
        alone_ms=alone_ms(group, sample) if group and sample.last is row else 0.0,
    )


def _done(steps: Sequence[StepRequests]) -> list[Done]:
    """What was left after so many requests, mean of the steps that tell."""
    found = []
    for number, share in enumerate(DONE):
        rows = [(row, left) for row in steps if (left := row.left[number]) is not None]
        if rows:
            found.append(
                Done(
                    share=share,
                    left=round(float(np.mean([left for _, left in rows])), 4),
                    saves_ms=round(float(np.mean([left * row.phase_ms for row, left in rows])), 1),
                    requests=round(float(np.mean([row.requests * (1 - share) for row, _ in rows])), 1),
                    steps=len(rows),
                )
            )
    return found


def _replicas(replicas: Sequence[ReplicaRequests], busy: Sequence[_Busy]) -> list[ReplicaRow]:
    """The idlest where there are many."""
    of: dict[int, list[_Busy]] = defaultdict(list)
    for each in busy:
        of[each.replica].append(each)
    rows = []
    for number, mine in of.items():
        replica, count = replicas[number], len(mine)
        rows.append(
            ReplicaRow(
                worker=replica.worker,
                rank=replica.rank,
                node=replica.node,
                pid=replica.pid,
                requests=round(sum(each.requests for each in mine) / count, 1),
                tokens=round(sum(each.tokens for each in mine) / count, 1),
                idle=round(sum(each.idle for each in mine) / count, 4),
                end=round(sum(each.end for each in mine) / count, 4),
                steps=count,
            )
        )
    rows = sorted(rows, key=lambda row: -row.idle)[:_MOST_REPLICAS]
    return sorted(rows, key=lambda row: (row.worker, row.rank, row.pid))
