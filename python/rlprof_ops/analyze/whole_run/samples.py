"""What two whole runs are compared by: their step and its phases, as means of stretches of the run."""

from __future__ import annotations

from itertools import pairwise
from statistics import fmean

from rlprof_ops.analyze.whole_run.model import WholeRun

_MOST_BATCHES = 12
_LEAST_STEPS = 3  # of a stretch
_FIRST = 0.05  # of the run: what is still being compiled and warmed up


def samples(run: WholeRun | None) -> dict[str, list[float]]:
    """What is compared -> nanoseconds, one value a stretch; nothing of a run that is too short."""
    if run is None:
        return {}
    first = max(1, round(_FIRST * len(run["steps"])))
    rows = range(first, len(run["steps"]))
    batches = min(_MOST_BATCHES, len(rows) // _LEAST_STEPS)
    if batches < 2:
        return {}
    edges = [first + len(rows) * batch // batches for batch in range(batches + 1)]
    columns = {"step": run["middle_ms"]}
    columns |= {f"{run['worker']}/{phase['name']}": phase["own_ms"] for phase in run["phases"]}
    return {
        what: [1e6 * fmean(values[begin:end]) for begin, end in pairwise(edges)]
        for what, values in columns.items()
    }
