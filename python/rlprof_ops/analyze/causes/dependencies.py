"""The graph of a run: which work waited for which, as far as the reports' times tell.

Nothing records it, so three things stand for it. A rank does one thing after the other. Ranks that meet in a
collective go on together. And a phase of one worker waits for a phase of another where in every captured step
the one ended on all ranks before the other began on any: what a trainer's loop makes so. Two phases that ever
overlap do not wait for each other, so generation that runs beside training is no link of training's chain.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from rlprof_ops.analyze.causes.activities import Activity, activities
from rlprof_ops.analyze.causes.graph import Graph
from rlprof_ops.analyze.run.merge import Merged, Rank

MAX_NAMED = 4  # hosts in a sentence
Kind = tuple[str, str, int]  # worker, phase, occurrence in the step
GroupKey = tuple[int, Kind]  # step, and what all ranks of the worker do in it
Relations = dict[tuple[Kind, Kind, int], bool]


@dataclass(frozen=True)
class Piece:
    """One piece of an activity: the whole of it, or the work between two collectives (`number` counts)."""

    activity: Activity
    number: int


@dataclass(frozen=True)
class StepGraph:
    """Consecutive captured steps as a graph. `pieces[i]` is None where piece i only stands for "all of these
    have ended".
    """

    graph: Graph
    pieces: tuple[Piece | None, ...]
    steps: int  # how many the window holds


def untold(merged: Merged) -> str:
    """Why nothing is said of the chain of work in a step; "" where it can be."""
    apart = sorted({rank.host for rank in merged.ranks if merged.clocks.shared_by(rank.host)})
    if apart:
        more = len(apart) - MAX_NAMED
        named = ", ".join(apart[:MAX_NAMED]) + (f" and {more} more" if more > 0 else "")
        return (
            f"The clock of {named} is not aligned with the other hosts': no captured collective and no clock"
            " probe joins them, so which work waited for which cannot be told. Capture ranks of all hosts"
            " that share a collective in the same steps, or run the job with rlprof, which probes the clocks."
        )
    if merged.steps and not any(row.phases for row in merged.steps):
        return "No report marks a phase, so there are no links to make a chain of."
    return ""


def windows(merged: Merged) -> list[StepGraph]:
    """One graph for every run of consecutive steps; none where `untold` says why."""
    if untold(merged):
        return []
    found = activities(merged)
    count = {row.step: row.count or 1 for row in merged.steps}
    numbers = sorted({a.step for a in found})
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + count[runs[-1][-1]]:
            runs[-1].append(number)
        else:
            runs.append([number])
    parts = [[a for a in found if a.step in set(run)] for run in runs]
    related = _relations(parts, merged.clocks.residual_ns or 0)
    strictly = _relations(parts, 0)
    begins: dict[int, int] = {}
    for row in merged.steps:
        begins[row.step] = min(begins.get(row.step, row.start), row.start)
    made = []
    for run, mine in zip(runs, parts, strict=True):
        begin, steps = min(begins[run[0]], mine[0].start), sum(count[n] for n in run)
        try:
            made.append(_window(mine, related, begin, steps, meet=True))
        except ValueError:  # times that contradict each other: what is certain alone
            made.append(_window(mine, strictly, begin, steps, meet=False))
    return made


def _groups(part: Sequence[Activity]) -> dict[GroupKey, list[Activity]]:
    groups: dict[GroupKey, list[Activity]] = defaultdict(list)
    for activity in part:
        kind = (activity.rank.worker, activity.phase, activity.occurrence)
        groups[activity.step, kind].append(activity)
    return groups


def _relations(parts: Sequence[Sequence[Activity]], residual_ns: int) -> Relations:
    """(before, after, how many captured steps later) -> whether it was so each time it could be seen.

    What ends within the clocks' residual of the other's begin counts as before it, where it also began and
    ended first.
    """
    seen: Relations = {}
    for part in parts:
        spans: dict[int, dict[Kind, tuple[int, int]]] = defaultdict(dict)
        for (step, kind), group in _groups(part).items():
            spans[step][kind] = (min(a.start for a in group), max(a.end for a in group))
        steps = sorted(spans)
        for apart, pairs in ((0, [(s, s) for s in steps]), (1, list(pairwise(steps)))):
            for first, second in pairs:
                for a, (a_start, a_end) in spans[first].items():
                    for b, (b_start, b_end) in spans[second].items():
                        late = max(a_end - b_start, 0)
                        before = late <= min(residual_ns, (b_end - b_start) // 2, (a_end - a_start) // 2)
                        key = (a, b, apart)
                        seen[key] = seen.get(key, True) and before
    return seen


class _Builder:
    """Pieces first, then what each waited for: a piece may come before what it waits for is known."""

    def __init__(self) -> None:
        self.start: list[int] = []
        self.end: list[int] = []
        self.after: list[list[int]] = []
        self.pieces: list[Piece | None] = []

    def add(self, start: int, end: int, after: Sequence[int], piece: Piece | None) -> int:
        self.start.append(start)
        self.end.append(max(end, start))
        self.after.append(list(after))
        self.pieces.append(piece)
        return len(self.start) - 1

    def joined(self, members: Sequence[int]) -> int:
        """One piece that stands for all of several: it takes no time and ends with the last of them."""
        if len(members) == 1:
            return members[0]
        at = max(self.end[i] for i in members)
        return self.add(at, at, members, None)

    def window(self, origin: int, steps: int) -> StepGraph:
        graph = Graph(tuple(self.start), tuple(self.end), tuple(map(tuple, self.after)), origin)
        return StepGraph(graph, tuple(self.pieces), steps)


def _window(part: Sequence[Activity], related: Relations, origin: int, steps: int, meet: bool) -> StepGraph:
    built = _Builder()
    groups = _groups(part)
    numbers = sorted({step for step, _ in groups})
    previous = dict(zip(numbers[1:], numbers, strict=False))
    ended: dict[int, dict[Kind, int]] = defaultdict(dict)
    first: dict[int, int] = {}  # id of an activity -> its first piece
    last: dict[int, int] = {}
    for (step, kind), group in groups.items():
        begins = [built.add(a.start, a.end, (), Piece(a, 0)) for a in group]
        ends = _met(built, group, begins) if meet else begins
        ended[step][kind] = built.joined(ends)
        first |= {id(a): node for a, node in zip(group, begins, strict=True)}
        last |= {id(a): node for a, node in zip(group, ends, strict=True)}
    for (step, kind), group in groups.items():
        before = [node for other, node in ended[step].items() if related.get((other, kind, 0))]
        if step in previous:
            earlier = ended[previous[step]].items()
            before += [node for other, node in earlier if related.get((other, kind, 1))]
        if before:
            node = built.joined(before)
            for activity in group:
                built.after[first[id(activity)]].append(node)
    chains: dict[Rank, Activity] = {}
    for activity in part:  # in order of time
        earlier_one = chains.get(activity.rank)
        if earlier_one is not None and earlier_one.end <= activity.start:
            built.after[first[id(activity)]].append(last[id(earlier_one)])
        chains[activity.rank] = activity
    return built.window(origin, steps)


def _met(built: _Builder, group: Sequence[Activity], begins: list[int]) -> list[int]:
    """Cuts the pieces of one phase where its ranks meet; the last piece of each rank."""
    names = {tuple(m[0] for m in a.meetings) for a in group}
    if len(names) == 1 and group[0].meetings:
        return _one_by_one(built, group, begins)
    talking = [i for i, a in enumerate(group) if a.communication_ns > 0]
    if not talking or max(group[i].start for i in talking) >= min(group[i].end for i in talking):
        return begins
    for i in talking:
        built.end[begins[i]] = max(group[i].end - group[i].communication_ns, group[i].start)
    met = built.joined([begins[i] for i in talking])
    ends = list(begins)
    for i in talking:
        ends[i] = built.add(group[i].end, group[i].end, (met,), Piece(group[i], 1))
    return ends


def _one_by_one(built: _Builder, group: Sequence[Activity], begins: Sequence[int]) -> list[int]:
    nodes = list(begins)
    for node, activity in zip(nodes, group, strict=True):
        built.end[node] = activity.meetings[0][1]
    for number in range(len(group[0].meetings)):
        met = built.joined(nodes)
        for i, a in enumerate(group):
            until = a.meetings[number + 1][1] if number + 1 < len(a.meetings) else a.end
            nodes[i] = built.add(a.meetings[number][2], until, (met,), Piece(a, number + 1))
    return nodes
