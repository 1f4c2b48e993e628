"""How long answers are: over the whole run, and step by step."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from rlprof_ops.analyze.whole_run.records import Integers
from rlprof_ops.analyze.whole_run.run_data import Lengths, StepLengths
from rlprof_ops.runtime.request_log import EngineRequest

MOST_COLUMNS = 240  # steps of a long run that are kept, evenly spread
_A_DOUBLING = 2  # bins of the distribution
_LONG = 0.95


def lengths(rows: Sequence[EngineRequest], windows: Sequence[tuple[int, int, int]]) -> Lengths | None:
    """Of the requests that were done in steps: `windows` are (step, begin, end). None where none made a
    token.
    """
    rows = sorted(rows, key=lambda row: row.finished_ns)
    done = np.array([row.finished_ns for row in rows], np.int64)
    came = np.array([row.arrival_ns for row in rows], np.int64)
    steps, mine, early = [], [], []
    before = 0  # the end of the generation before
    for step, begin, end in windows:
        inside = slice(*np.searchsorted(done, (begin, end)).tolist())
        if inside.stop > inside.start:
            steps.append(step)
            mine.append(inside)
            early.append(came[inside] < before)
        before = end
    tokens = np.array([row.tokens for row in rows], np.int64)
    every = np.concatenate([tokens[inside] for inside in mine]) if mine else np.empty(0, np.int64)
    if not every.any():
        return None
    cut = np.array([row.reason == "length" for row in rows], np.bool_)
    at_limit = np.concatenate([cut[inside] for inside in mine])
    carried = np.concatenate(early)
    told = any(row.preemptions is not None for row in rows)
    again = np.array([row.preemptions or 0 for row in rows], np.int64)
    preempted = np.concatenate([again[inside] for inside in mine])
    kept = np.unique(np.linspace(0, len(steps) - 1, min(len(steps), MOST_COLUMNS)).astype(np.int64)).tolist()
    shown = [mine[place] for place in kept]
    edges = _edges(every)
    return Lengths(
        edges=edges,
        counts=np.histogram(every, edges)[0].tolist(),
        cut=np.histogram(every[at_limit], edges)[0].tolist(),
        quantiles=[round(float(value), 1) for value in np.quantile(every, (0.5, 0.9, 0.99, 1.0))],
        at_limit=round(float(at_limit.mean()), 4),
        carried=round(float(carried.mean()), 4),
        mean_carried=_mean(every[carried]),
        mean_others=_mean(every[~carried]),
        preemptions=int(preempted.sum()) if told else None,
        preempted=int(np.count_nonzero(preempted)) if told else None,
        steps=StepLengths(
            step=[steps[place] for place in kept],
            median=[round(float(np.median(tokens[inside])), 1) for inside in shown],
            long=[round(float(np.quantile(tokens[inside], _LONG)), 1) for inside in shown],
            longest=[int(tokens[inside].max()) for inside in shown],
            mean=[round(float(tokens[inside].mean()), 1) for inside in shown],
            at_limit=[round(float(cut[inside].mean()), 4) for inside in shown],
            carried=[round(float(early[place].mean()), 4) for place in kept],
            preempted=[int(np.count_nonzero(again[inside])) for inside in shown] if told else None,
        ),
    )


def _mean(tokens: Integers) -> float | None:
    return round(float(tokens.mean()), 1) if len(tokens) else None


def _edges(tokens: Integers) -> list[int]:
    """Bins of equal ratio from the shortest answer to the longest."""
    low, high = max(int(tokens.min()), 1), int(tokens.max())
    bins = round(_A_DOUBLING * math.log2(high / low)) + 1
    edges = np.unique(np.geomspace(low, high + 1, bins + 1).round().astype(np.int64)).tolist()
    return [int(tokens.min()), *edges[1:]]
