"""Numbers as people read them: durations, shares and sizes, each with its unit."""

from __future__ import annotations

from collections.abc import Sequence

from rlprof_ops.analyze.report_model import StepRow
from rlprof_ops.words import counted as counted
from rlprof_ops.words import duration as duration
from rlprof_ops.words import size as size


def percent(share: float) -> str:
    return f"{share * 100:.{0 if share >= 0.0995 else 1}f} %"


def ranks_read(ranks: int, not_read: int) -> str:
    """ "16 ranks", or "15 of 16 ranks"."""
    return f"{ranks} of {counted(ranks + not_read, 'rank')}" if not_read else counted(ranks, "rank")


def step_runs(steps: Sequence[StepRow]) -> str:
    """Steps as a request has them, "3:6, 8"; a window that no mark divides counts as the steps it holds."""
    runs: list[list[int]] = []
    for row in steps:
        first, last = row.step, row.step + (row.count or 1) - 1
        if runs and first <= runs[-1][1] + 1:
            runs[-1][1] = max(runs[-1][1], last)
        else:
            runs.append([first, last])
    return ", ".join(str(a) if a == b else f"{a}:{b + 1}" for a, b in runs)


def unmarked(steps: Sequence[StepRow]) -> list[str]:
    """Sentences on windows whose steps no range marks: what their figures "a step" are."""
    said = []
    for row in steps:
        if row.marked:
            continue
        if row.count is None:
            said.append(
                f"No range marks a step in a window of {duration(row.duration_ns)}, and nothing tells how"
                " many steps it holds: its figures are of the whole window."
            )
        elif row.count > 1:
            said.append(
                f"Steps {step_runs([row])} are a window of {row.count} steps that no range marks: its"
                f" figures a step are those of the window ({duration(row.duration_ns)}) divided by"
                f" {row.count}."
            )
    told = [row for row in steps if not row.marked and row.count == 1]
    if told and len(told) == len(steps):
        one = len(told) == 1
        said.append(
            f"Step{'' if one else 's'} {step_runs(told)}: no range marks {'it' if one else 'them'};"
            f" {'it is the whole capture' if one else 'they are told by their phases, which repeat'}."
        )
    return said
