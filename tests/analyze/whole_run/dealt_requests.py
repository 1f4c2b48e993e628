"""Runs whose requests are made up: who had which one, and when it was done."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from tests.recorder.recorded import SECOND, write_record

from rlprof_ops.recorder.samples.step_marks import Phase, ToldStep
from rlprof_ops.runtime.request_log import EngineRequest

ZERO_NS, STEP_NS = 1_760_000_000 * SECOND, 20 * SECOND


class Dealt(NamedTuple):
    """One request: seconds from its step's begin, to its arrival and to its end."""

    id: str
    step: int
    arrival_s: float
    end_s: float
    tokens: int
    queued_s: float | None = None
    group: int | None = None
    turn: int = 1
    first: str | None = None


def steps(run: Path, count: int, phase_s: float = 10.0, step_s: float = 12.0) -> None:
    """The driver's steps, whose generation begins with the step; 0: none is marked."""
    phases = {"generation": Phase(1, 0.0, phase_s, phase_s)} if phase_s else {}
    told = [
        [ToldStep("driver", 0, 1, True, step, ZERO_NS + step * STEP_NS, step_s, phases)]
        for step in range(1, count + 1)
    ]
    write_record(run, "n1", told)


def dealt(run: Path, rank: int, requests: Sequence[Dealt]) -> Path:
    """The file of one replica."""
    rows = []
    for each in requests:
        begin = ZERO_NS + each.step * STEP_NS
        came, done = (begin + round(seconds * SECOND) for seconds in (each.arrival_s, each.end_s))
        told = each.queued_s is not None
        scheduled = came + round((each.queued_s or 0) * SECOND) if told else None
        preempted, reason = (1, "length") if told else (None, "stop")
        queued = came if told else None
        row = EngineRequest(each.id, 2, each.tokens, came, queued, scheduled, None, done, preempted, reason)
        rows.append(row._replace(group=each.group, turn=each.turn, first=each.first))
    return deal_rows(run, rank, rows)


def deal_rows(run: Path, rank: int, rows: Sequence[EngineRequest]) -> Path:
    """The same of rows that are made already."""
    path = run / "nodes" / "n1" / "requests" / f"{100 + rank}.jsonl"
    path.parent.mkdir(parents=True, exist_ok=True)
    first = {"event": "requests", "worker": "rollout", "rank": rank, "pid": 100 + rank, "host": "n1"}
    path.write_text("".join(json.dumps(line) + "\n" for line in [first, *map(list, rows)]))
    return path


def uneven(run: Path) -> Path:
    """Three steps with 20 requests on each of two replicas, one done every 0.2 s; the last one of rollout 1
    takes 9.5 of the phase's 10 s. Two more are done when no step generates.
    """
    steps(run, 3)
    for rank in (0, 1):
        rows = [
            Dealt(f"{step}-{rank}-{n}", step, 0.0, 0.2 * n, 10)
            for step in (1, 2, 3)
            for n in range(1, 21 - rank)
        ]
        if rank:
            rows += [Dealt(f"late-{step}", step, 0.0, 9.5, 1000, 0.1) for step in (1, 2, 3)]
        rows.append(Dealt("of an evaluation", 1, 10.5, 15.0, 5))
        path = dealt(run, rank, rows)
    return path


def grouped(run: Path) -> None:
    """Three steps with eight answers to each of four prompts, four of them on each of two replicas, all done
    within 2 s. One answer to the last prompt has three turns, and 2 s between them; it is done after 17 s.
    """
    steps(run, 3, 18.0, 19.0)
    for rank in (0, 1):
        rows = []
        for step in (1, 2, 3):
            for prompt in range(4):
                for n in range(4 * rank, 4 * rank + 4):
                    name, end = f"{step}-{prompt}-{n}", 1.0 + 0.25 * prompt + 0.03 * n
                    rows.append(Dealt(name, step, 0.0, end, 10, group=prompt))
            first = rows[-1].id  # 1.96 s
            for turn, begin, end in ((2, 3.96, 6.0), (3, 8.0, 17.0)) if rank else ():
                tokens = round(10 * (end - begin))
                rows.append(Dealt(f"{first}t{turn}", step, begin, end, tokens, None, 3, turn, first))
        dealt(run, rank, rows)
