"""The long tail of generation: what share of the phase its last twentieth of the requests cost.

By the engines' own count of requests where they were recorded; else by the ranks that generate, each of which
is then a request.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from rlprof_ops.analyze.whole_run.records import Floats, Integers, ProcessSteps, RecordedNode
from rlprof_ops.analyze.whole_run.run_data import Tail
from rlprof_ops.recorder.detect.phase_words import GENERATION

LAST = 0.05
_LEAST_LOOKS = 8  # of the engines within one phase
_LEAST_RANKS = 4
_LEAST_REQUESTS = 4


def long_tail(driver: ProcessSteps, nodes: Sequence[RecordedNode]) -> Tail | None:
    """None where neither engines nor enough ranks tell when generation ends."""
    found = _by_requests(driver, nodes)
    of = "requests"
    if not found:
        found, of = _by_ranks(nodes), "ranks"
    if not found:
        return None
    steps = sorted(found)
    shares = [round(found[step], 4) for step in steps]
    return Tail(of, round(float(np.mean(shares)), 4), steps, shares)


def _by_requests(driver: ProcessSteps, nodes: Sequence[RecordedNode]) -> dict[int, float]:
    moments, requests = in_flight(nodes)
    found = {}
    for step, begin, end in generation_windows(driver) if len(moments) else ():
        inside = slice(*np.searchsorted(moments, (begin, end)).tolist())
        share = tail_share(moments[inside], requests[inside], begin, end)
        if share is not None:
            found[step] = share
    return found


def generation_windows(driver: ProcessSteps) -> list[tuple[int, int, int]]:
    """(step, begin, end) of the generation of every step that had any; Unix nanoseconds."""
    generation = sum((own for name, own in driver.phases.items() if GENERATION.search(name)), np.zeros(1))
    found = []
    for place, step in enumerate(driver.step.tolist()):
        if len(generation) <= place or not generation[place] or np.isnan(driver.generated_s[place]):
            continue
        end = int(driver.begin_ns[place]) + int(driver.generated_s[place] * 1e9)
        found.append((step, end - int(generation[place] * 1e9), end))
    return found


def tail_share(
    moments: Integers, requests: Integers, begin: int, end: int, last_share: float = LAST
) -> float | None:
    """The share of `begin` to `end` in which at most `last_share` of the most requests was left, after that
    most.
    """
    if len(moments) < _LEAST_LOOKS or requests.max() < _LEAST_REQUESTS:
        return None
    peak = int(requests.argmax())
    left = np.flatnonzero(requests[peak:] > max(1.0, last_share * requests[peak])) + peak
    last = moments[min(int(left[-1]) + 1, len(moments) - 1)]
    return float((end - last) / max(end - begin, 1))


def in_flight(nodes: Sequence[RecordedNode]) -> tuple[Integers, Integers]:
    """Every moment at which some node's engines were looked at, and the requests that all of them had then:
    each node's count held until its next.
    """
    engines = [node.engines for node in nodes if len(node.engines)]
    if not engines:
        return np.empty(0, np.int64), np.empty(0, np.int64)
    moments = np.unique(np.concatenate([looks.t_ns for looks in engines]))
    total = np.zeros(len(moments), np.int64)
    for looks in engines:
        place = np.searchsorted(looks.t_ns, moments, side="right") - 1
        total += np.where(place >= 0, looks.in_flight[np.maximum(place, 0)], 0)
    return moments, total


def _by_ranks(nodes: Sequence[RecordedNode]) -> dict[int, float]:
    """Of each step: how long the slowest twentieth of the ranks generated after all others had ended."""
    ends: dict[int, list[float]] = {}
    for node in nodes:
        for process in node.processes:
            if not process.leads:
                known = ~np.isnan(process.generated_s)
                for step, end in zip(
                    process.step[known].tolist(), process.generated_s[known].tolist(), strict=True
                ):
                    ends.setdefault(step, []).append(end)
    return {step: _tail_of(np.array(told)) for step, told in ends.items() if len(told) >= _LEAST_RANKS}


def _tail_of(ends: Floats) -> float:
    ends = np.sort(ends)
    others = ends[-1 - max(1, round(LAST * len(ends)))]
    return float((ends[-1] - others) / max(ends[-1], 1e-9))
