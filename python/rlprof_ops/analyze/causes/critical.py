"""The chain of work that decided each step's length, and how much longer everything else could have taken."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from statistics import fmean

from rlprof_ops.analyze.causes.activities import Activity
from rlprof_ops.analyze.causes.dependencies import Piece, Window
from rlprof_ops.analyze.causes.graph import critical_path, slacks
from rlprof_ops.analyze.run.merge import Merged, Rank


@dataclass(frozen=True)
class Link:
    """One phase of one worker on the path. `rank` is the one that had the most of it; where ranks meet in
    collectives the path goes from one to the other, and `by_rank` says how long it was on each.

    `after_ns` is the time before it in which nothing ran that it is known to have waited for: scheduling,
    transfers, work that no report shows. Negative where clocks disagree by that.
    """

    worker: str
    rank: Rank
    phase: str
    start: int
    duration_ns: int
    after_ns: int
    by_rank: tuple[tuple[Rank, int], ...]


@dataclass(frozen=True)
class Chain:
    """What decided one step: its links and the time before and after them add up to its length."""

    step: int
    start: int
    length_ns: int
    links: tuple[Link, ...]
    stretches: tuple[tuple[Rank, int, int], ...]  # where the path was, for pictures

    @property
    def rest_ns(self) -> int:
        """Of the step, what is in no link."""
        return self.length_ns - sum(link.duration_ns for link in self.links)


@dataclass(frozen=True)
class PhaseSlack:
    """How much longer one phase could have taken, nanoseconds a step: the tightest rank and each rank's mean.
    `on_path`: in how many of the `steps` it was on the path.
    """

    worker: str
    phase: str
    steps: int
    on_path: int
    tightest_ns: int
    by_rank: tuple[tuple[Rank, int], ...]


def chains(merged: Merged, windows: Sequence[Window]) -> tuple[Chain, ...]:
    """The chain of every step of every window."""
    bounds: dict[int, tuple[int, int]] = {}
    for row in merged.steps:
        start, end = bounds.get(row.step, (row.start, row.end))
        bounds[row.step] = (min(start, row.start), max(end, row.end))
    found = []
    for window in windows:
        path = [(node, piece) for node in critical_path(window.graph) if (piece := window.pieces[node])]
        before = window.graph.origin
        for step, nodes in groupby(path, key=lambda item: item[1].activity.step):
            start, end = bounds[step]
            found.append(_chain(window, step, list(nodes), max(before, start), start, end))
            before = window.graph.end[path[0][0]] if not found[-1].links else _end(found[-1])
    return tuple(_joined(found))


def _end(chain: Chain) -> int:
    return chain.links[-1].start + chain.links[-1].duration_ns


def _joined(found: Sequence[Chain]) -> list[Chain]:
    """A step that the path leaves and comes back to, as with asynchronous training, is one chain."""
    by_step: dict[int, Chain] = {}
    for chain in found:
        known = by_step.get(chain.step)
        if known is not None:
            chain = Chain(
                chain.step,
                known.start,
                known.length_ns,
                (*known.links, *chain.links),
                (*known.stretches, *chain.stretches),
            )
        by_step[chain.step] = chain
    return [by_step[step] for step in sorted(by_step)]


def _chain(
    window: Window, step: int, nodes: Sequence[tuple[int, Piece]], before: int, start: int, end: int
) -> Chain:
    graph = window.graph
    links: list[Link] = []
    stretches: list[tuple[Rank, int, int]] = []
    keyed = groupby(nodes, key=lambda item: _what(item[1].activity))
    for (worker, phase, _), group in keyed:
        members = list(group)
        begin, until = graph.start[members[0][0]], graph.end[members[-1][0]]
        by_rank: dict[Rank, int] = defaultdict(int)
        for node, piece in members:
            rank = piece.activity.rank
            by_rank[rank] += graph.duration[node]
            if stretches and stretches[-1][0] == rank and stretches[-1][2] == graph.start[node]:
                stretches[-1] = (rank, stretches[-1][1], graph.end[node])
            elif graph.duration[node]:
                stretches.append((rank, graph.start[node], graph.end[node]))
        ranked = sorted(by_rank.items(), key=lambda item: (-item[1], item[0]))
        links.append(Link(worker, ranked[0][0], phase, begin, until - begin, begin - before, tuple(ranked)))
        before = until
    return Chain(step, start, end - start, tuple(links), tuple(stretches))


def _what(activity: Activity) -> tuple[str, str, int]:
    return activity.rank.worker, activity.phase, activity.occurrence


def phase_slacks(windows: Sequence[Window]) -> tuple[PhaseSlack, ...]:
    """The slack of every phase of every worker, the tightest first."""
    slack: dict[tuple[str, str], dict[int, dict[Rank, int]]] = defaultdict(lambda: defaultdict(dict))
    on_path: dict[tuple[str, str], set[int]] = defaultdict(set)
    for window in windows:
        path = set(critical_path(window.graph))
        for node, spare in enumerate(slacks(window.graph)):
            piece = window.pieces[node]
            if piece is None:
                continue
            activity = piece.activity
            key = (activity.rank.worker, activity.phase)
            mine = slack[key][activity.step]
            mine[activity.rank] = min(spare, mine.get(activity.rank, spare))
            if node in path:
                on_path[key].add(activity.step)
    found = []
    for (worker, phase), steps in slack.items():
        ranks = sorted({rank for ranks in steps.values() for rank in ranks})
        by_rank = tuple(
            (rank, round(fmean(mine[rank] for mine in steps.values() if rank in mine))) for rank in ranks
        )
        tightest = round(fmean(min(mine.values()) for mine in steps.values()))
        found.append(PhaseSlack(worker, phase, len(steps), len(on_path[worker, phase]), tightest, by_rank))
    return tuple(sorted(found, key=lambda s: (s.tightest_ns, -s.on_path, s.worker, s.phase)))
