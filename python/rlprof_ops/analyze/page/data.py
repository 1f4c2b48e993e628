"""What the page draws, cut to a size that opens at once at any number of ranks; the full numbers are in
report.json.
"""

from __future__ import annotations

from collections import defaultdict

import msgspec

from rlprof_ops.analyze.output.text import ranks_read, step_runs, unmarked
from rlprof_ops.analyze.report_model import AnatomyRow, Answer
from rlprof_ops.analyze.whole_run.run_data import longest_phases

MAX_SEGMENTS = 60_000
MAX_BUBBLES = 400
MAX_RUN_PHASES = 12
_NOT_DRAWN = ("schema", "t0_ns", "anatomy", "call_paths")


class WorkerRow(msgspec.Struct, frozen=True):
    """The mean step of a worker; `phases` and `waiting`: [phase or worker, mean_ns]."""

    worker: str
    ranks: int
    controller: bool
    mean_ns: int
    phases: list[tuple[int, int]]
    waiting: list[tuple[str, int]]
    unexplained_ns: int
    uncaptured_ns: int


def page_data(answer: Answer) -> dict[str, object]:
    """The part of an answer that the page shows. Times stay nanoseconds, but for segments: whole
    microseconds.
    """
    cut: dict[str, object] = {
        "segments": _segments(answer),
        "steps_of": _steps_of(answer),
        "workers": worker_rows(answer),
        "bubbles": answer.bubbles[:MAX_BUBBLES],
        "step_names": {str(row.step): step_runs([row]) for row in answer.steps},
        "all_steps": step_runs(answer.steps),
        "ranks_read": ranks_read(len(answer.ranks), answer.coverage.not_read),
        "unmarked": unmarked(answer.steps),
    }
    run = answer.whole_run
    if run is not None:
        few = longest_phases(run.phases, run.counts, MAX_RUN_PHASES)
        cut["whole_run"] = msgspec.structs.replace(run, phases=few)
    whole = {name: getattr(answer, name) for name in Answer.__struct_fields__ if name not in _NOT_DRAWN}
    return whole | cut


def _segments(answer: Answer) -> list[list[int]]:
    """[rank, step, phase, start µs, length µs]; where there are too many, the shortest of each rank and
    step go.
    """
    segments = answer.segments
    groups: dict[tuple[int, int], list[list[int]]] = defaultdict(list)
    for segment in segments:
        groups[segment[0], segment[1]].append(segment)
    budget = max(4, MAX_SEGMENTS // max(len(groups), 1))
    if len(segments) > MAX_SEGMENTS:
        segments = [
            s
            for g in groups.values()
            for s in sorted(sorted(g, key=lambda s: -s[4])[:budget], key=lambda s: s[3])
        ]
    return [
        [rank, step, phase, start // 1000, max(length // 1000, 1)]
        for rank, step, phase, start, length in segments
    ]


def _steps_of(answer: Answer) -> list[list[int]]:
    """[rank, step, start µs, length µs, thinned] of every rank's steps; thinned: it has more stretches of
    phases than are drawn, so that a segment stands for what takes most of its time.
    """
    return [
        [a.rank, a.step, a.start_ns // 1000, a.duration_ns // 1000, int(a.thinned)] for a in answer.anatomy
    ]


def worker_rows(answer: Answer) -> list[WorkerRow]:
    """The mean step of each worker: phases, waiting for whom, and the rest."""
    groups: dict[str, list[AnatomyRow]] = defaultdict(list)
    for row in answer.anatomy:
        groups[answer.ranks[row.rank].worker].append(row)
    found = []
    for worker, rows in groups.items():
        steps = sum(row.count or 1 for row in rows)
        phases: dict[int, float] = defaultdict(float)
        waits: dict[str, float] = defaultdict(float)
        for row in rows:
            for phase in row.phases:
                phases[phase.phase] += phase.duration_ns / steps
            for other, length in row.waiting_ns.items():
                waits[other] += length / steps
        ranks = {row.rank for row in rows}
        found.append(
            WorkerRow(
                worker=worker,
                ranks=len(ranks),
                controller=answer.ranks[rows[0].rank].controller,
                mean_ns=round(sum(row.duration_ns for row in rows) / steps),
                phases=[(phase, round(length)) for phase, length in sorted(phases.items())],
                waiting=[(other, round(length)) for other, length in sorted(waits.items())],
                unexplained_ns=round(sum(row.unexplained_ns for row in rows) / steps),
                uncaptured_ns=round(sum(row.uncaptured_ns for row in rows) / steps),
            )
        )
    first: dict[str, int] = {}
    for rank, _, _, start, _ in answer.segments:
        worker = answer.ranks[rank].worker
        first[worker] = min(first.get(worker, start), start)
    return sorted(found, key=lambda w: (w.controller, first.get(w.worker, 0), w.worker))
