"""Rewards and tools, as the phases of all processes and the turns of samples tell them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence

import numpy as np

from rlprof_ops.analyze.whole_run.records import Floats, Integers, RecordedNode
from rlprof_ops.analyze.whole_run.run_data import CallRow
from rlprof_ops.analyze.whole_run.sample_groups import Sample

_MOST_ROWS = 40
BETWEEN_TURNS = "between turns"


def calls_of(nodes: Sequence[RecordedNode]) -> list[CallRow]:
    """What takes most time first."""
    found: dict[tuple[str, str], list[tuple[Integers, Integers, Floats]]] = defaultdict(list)
    for process in (process for node in nodes for process in node.processes):
        for name, (step, count, seconds) in process.calls.items():
            found[process.worker, name].append((step, count, seconds))
    rows = [_row(worker, name, of) for (worker, name), of in found.items()]
    return sorted(rows, key=lambda row: -row.step_ms)[:_MOST_ROWS]


def _row(worker: str, name: str, of: Sequence[tuple[Integers, Integers, Floats]]) -> CallRow:
    """Of the ranks of one worker: the step, the calls and their seconds, a row a step that has any."""
    step, count, seconds = (np.concatenate([told[n] for told in of]) for n in range(3))
    steps = len(np.unique(step))
    return CallRow(
        worker=worker,
        name=name,
        ranks=len(of),
        steps=steps,
        calls=round(float(count.sum()) / steps, 2),
        call_ms=round(1e3 * float(seconds.sum() / count.sum()), 3),
        step_ms=round(1e3 * float(seconds.mean()), 3),
        longest_ms=round(1e3 * float(seconds.max()), 3),
    )


def between_turns(steps: Iterable[Sequence[Sample]]) -> list[CallRow]:
    """Of the samples of each step that have several turns: the time from one to the next, a row a worker."""
    found: dict[str, list[list[float]]] = defaultdict(list)
    for samples in steps:
        gaps: dict[str, list[float]] = defaultdict(list)
        for sample in samples:
            gaps[sample.worker] += sample.gaps_ms
        for worker, mine in gaps.items():
            found[worker].append(mine)
    rows = []
    for worker, of in sorted(found.items()):
        every = np.concatenate([np.asarray(mine) for mine in of])
        rows.append(
            CallRow(
                worker=worker,
                name=BETWEEN_TURNS,
                ranks=1,
                steps=len(of),
                calls=round(len(every) / len(of), 2),
                call_ms=round(float(every.mean()), 3),
                step_ms=round(float(every.sum()) / len(of), 3),
                longest_ms=round(float(every.max()), 3),
            )
        )
    return rows
