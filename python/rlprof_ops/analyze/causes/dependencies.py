"""The graph of a run: which work waited for which, as far as the reports' times tell.

Nothing records it, so four things stand for it. A rank does one thing after the other. Ranks that meet in a
collective go on together. And a phase of one worker waits for a phase of another where in every captured step
the one ended on all ranks before the other began on any: what a trainer's loop makes so. Two phases that ever
overlap do not wait for each other, so generation that runs beside training is no link of training's chain.
But what is made of answers as they come (a streamed reward) begins beside generation, and what of it comes
after the last answer waits for that.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from rlprof_ops.analyze.causes.activities import Activity, activities, may_be_streamed
from rlprof_ops.analyze.causes.graph import Graph
from rlprof_ops.analyze.causes.waiting import ROLLOUT
from rlprof_ops.analyze.run.merge import Merged, Rank, RankStep

MAX_NAMED = 4  # hosts in a sentence
LEAST_IN_PHASES = 0.05  # of any rank's step: less is a detail that somebody marked, no phase of a loop
MAX_PIECES = 8_000  # of a phase and step: beyond, the collectives of its ranks are taken together
MAX_APART = 4  # steps between work that waits and what it waits for, where steps overlap
_SHORT_TAIL = 0.15  # of a streamed phase: without a backlog it works as fast as answers come
_NO_PAUSE = 0.9  # of a streamed phase is work: its calls are not told apart
Kind = tuple[str, str, int]  # worker, phase, occurrence in the step
GroupKey = tuple[int, Kind]  # step, and what all ranks of the worker do in it
Relations = dict[tuple[Kind, Kind, int], bool]
Streams = dict[Kind, list[Kind]]  # what is streamed -> the generation that it comes from


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
    if merged.steps and not any(row.marked or row.count for row in merged.steps):
        return "Nothing tells where a step begins and ends, so what decided its length cannot be told."
    if merged.steps and (share := max(map(_in_phases, merged.steps))) < LEAST_IN_PHASES:
        return (
            f"The ranges that reports mark take at most {100 * share:.1f} % of a step, so what decided its"
            " length cannot be told."
        )
    return ""


def _in_phases(row: RankStep) -> float:
    return row.in_phases_ns / max(row.duration_ns, 1)


def windows(merged: Merged) -> list[StepGraph]:
    """One graph for every run of consecutive steps; none where `untold` says why, or steps overlap."""
    if untold(merged) or merged.periods:
        return []
    parts = consecutive(merged)
    related = relations(parts, merged.clocks.residual_ns or 0)
    strictly = relations(parts, 0)
    streams = _streams(parts)
    count = {row.step: row.count or 1 for row in merged.steps}
    begins: dict[int, int] = {}
    for row in merged.steps:
        begins[row.step] = min(begins.get(row.step, row.start), row.start)
    made = []
    for mine in parts:
        run = sorted({a.step for a in mine})
        begin, steps = min(begins[run[0]], mine[0].start), sum(count[n] for n in run)
        try:
            made.append(window_of(mine, related, streams, begin, steps, meet=True))
        except ValueError:  # times that contradict each other: what is certain alone
            made.append(window_of(mine, strictly, {}, begin, steps, meet=False))
    return made


def consecutive(merged: Merged) -> list[list[Activity]]:
    """The activities of every run of consecutive steps."""
    found = activities(merged)
    count = {row.step: row.count or 1 for row in merged.steps}
    runs: list[list[int]] = []
    for number in sorted({a.step for a in found}):
        if runs and number == runs[-1][-1] + count[runs[-1][-1]]:
            runs[-1].append(number)
        else:
            runs.append([number])
    return [[a for a in found if a.step in set(run)] for run in runs]


def _groups(part: Sequence[Activity]) -> dict[GroupKey, list[Activity]]:
    groups: dict[GroupKey, list[Activity]] = defaultdict(list)
    for activity in part:
        kind = (activity.rank.role, activity.phase, activity.occurrence)
        groups[activity.step, kind].append(activity)
    return groups


def relations(parts: Sequence[Sequence[Activity]], residual_ns: int, most_apart: int = 1) -> Relations:
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
        for apart in range(most_apart + 1):
            for first, second in zip(steps, steps[apart:], strict=False):
                for a, (a_start, a_end) in spans[first].items():
                    for b, (b_start, b_end) in spans[second].items():
                        late = max(a_end - b_start, 0)
                        before = late <= min(residual_ns, (b_end - b_start) // 2, (a_end - a_start) // 2)
                        key = (a, b, apart)
                        seen[key] = seen.get(key, True) and before
    return seen


def _streams(parts: Sequence[Sequence[Activity]]) -> Streams:
    """What other workers make of generated answers while generation goes on: it begins after generation, and
    ends after it, in every captured step.
    """
    seen: dict[tuple[Kind, Kind], bool] = {}
    for part in parts:
        spans = {key: (group[0].start, max(a.end for a in group)) for key, group in _groups(part).items()}
        for (step, source), (begin, end) in spans.items():
            if source[1] not in ROLLOUT:
                continue
            for (other, kind), (start, over) in spans.items():
                if other == step and kind[0] != source[0] and may_be_streamed(kind[1]):
                    key = (kind, source)
                    seen[key] = seen.get(key, True) and begin < start < end <= over
    found: Streams = defaultdict(list)
    for (kind, source), always in seen.items():
        if always:
            found[kind].append(source)
    return found


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


def window_of(
    part: Sequence[Activity], related: Relations, streams: Streams, origin: int, steps: int, meet: bool
) -> StepGraph:
    built = _Builder()
    groups = _groups(part)
    numbers = sorted({step for step, _ in groups})
    ended: dict[int, dict[Kind, int]] = defaultdict(dict)
    first: dict[int, int] = {}  # id of an activity -> its first piece
    last: dict[int, int] = {}
    for (step, kind), group in sorted(groups.items(), key=lambda item: item[0][1] in streams):
        sources = [(step, source) for source in streams.get(kind, ())]
        begins = [built.add(a.start, a.end, (), Piece(a, 0)) for a in group]
        if sources:
            last_answer = max(a.end for source in sources for a in groups[source])
            generated = built.joined([ended[step][source] for _, source in sources])
            ends = [
                _fed(built, node, a, last_answer, generated) for node, a in zip(begins, group, strict=True)
            ]
        else:
            ends = _met(built, group, begins) if meet else begins
        ended[step][kind] = built.joined(ends)
        first |= {id(a): node for a, node in zip(group, begins, strict=True)}
        last |= {id(a): node for a, node in zip(group, ends, strict=True)}
    for (step, kind), group in groups.items():
        place = numbers.index(step)
        before = [
            node
            for apart, earlier in enumerate(numbers[max(place - MAX_APART, 0) : place + 1][::-1])
            for other, node in ended[earlier].items()
            if related.get((other, kind, apart))
        ]
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


def _fed(built: _Builder, node: int, activity: Activity, last_answer: int, generated: int) -> int:
    """Cuts a streamed activity at the last answer. Before it only its work counts, for its pauses are
    generation's. Where no pause shows, it is whole if a backlog is left then, else it only followed.
    """
    tail, span = activity.end - last_answer, activity.end - activity.start
    without_pause = activity.busy_ns > _NO_PAUSE * span
    if not 0 < tail < span or (without_pause and tail > _SHORT_TAIL * span):
        return node
    work = 0 if without_pause else max(activity.busy_ns - tail, 0)
    built.end[node] = activity.start + work
    return built.add(last_answer, activity.end, (node, generated), Piece(activity, 1))


def _met(built: _Builder, group: Sequence[Activity], begins: list[int]) -> list[int]:
    """Cuts the pieces of one phase where its ranks meet; the last piece of each rank."""
    names = {tuple(m.name for m in a.meetings) for a in group}
    if len(names) == 1 and 0 < len(group) * len(group[0].meetings) <= MAX_PIECES:
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
        built.end[node] = activity.meetings[0].arrival
    for number in range(len(group[0].meetings)):
        members: dict[str, list[int]] = defaultdict(list)
        for node, activity in zip(nodes, group, strict=True):
            members[activity.meetings[number].communicator].append(node)
        met = {communicator: built.joined(arrived) for communicator, arrived in members.items()}
        for i, a in enumerate(group):
            meeting = a.meetings[number]
            until = a.meetings[number + 1].arrival if number + 1 < len(a.meetings) else a.end
            nodes[i] = built.add(meeting.release, until, (met[meeting.communicator],), Piece(a, number + 1))
    return nodes
