"""The chain of work that decided each step's length, and how much longer everything else could have taken."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from itertools import groupby
from statistics import fmean

from rlprof_ops.analyze.causes.activities import Activity
from rlprof_ops.analyze.causes.dependencies import Piece, StepGraph
from rlprof_ops.analyze.causes.graph import critical_path, slacks
from rlprof_ops.analyze.report_model import ChainRow, LinkRow, SlackRow
from rlprof_ops.analyze.run.merge import Merged, Rank

MAX_STRETCHES = 400  # drawn a step
MAX_RANKS_OF_LINK = 8


def chains(merged: Merged, windows: Sequence[StepGraph]) -> list[ChainRow]:
    """The chain of every step of every window: its links and the time before and after them add up to its
    length.
    """
    bounds: dict[int, tuple[int, int]] = {}
    for row in merged.steps:
        start, end = bounds.get(row.step, (row.start, row.end))
        bounds[row.step] = (min(start, row.start), max(end, row.end))
    links: dict[int, list[LinkRow]] = defaultdict(list)
    stretches: dict[int, list[list[int]]] = defaultdict(list)
    for window in windows:
        path = [(node, piece) for node in critical_path(window.graph) if (piece := window.pieces[node])]
        before = window.graph.origin
        for step, nodes in groupby(path, key=lambda item: item[1].activity.step):
            before = max(before, bounds[step][0])
            parts: list[list[int]] = []
            found = _links(window, list(nodes), before, merged.t0, parts)
            before = merged.t0 + found[-1].start_ns + found[-1].duration_ns
            links[step] += found  # a step that the path leaves and comes back to is one chain
            stretches[step] += parts
    return [
        ChainRow(
            step=step,
            start_ns=bounds[step][0] - merged.t0,
            length_ns=bounds[step][1] - bounds[step][0],
            rest_ns=bounds[step][1] - bounds[step][0] - sum(link.duration_ns for link in found),
            links=found,
            stretches=sorted(
                sorted(stretches[step], key=lambda s: -s[2])[:MAX_STRETCHES], key=lambda s: s[1]
            ),
        )
        for step, found in sorted(links.items())
    ]


def _links(
    window: StepGraph, nodes: Sequence[tuple[int, Piece]], before: int, t0: int, stretches: list[list[int]]
) -> list[LinkRow]:
    """The phases of workers that the path goes through, and, in `stretches`, where it was. Where ranks meet
    in collectives the path goes from one to the other. `after_ns` is the time before a link in which nothing
    ran that it is known to have waited for, negative where clocks disagree by that.
    """
    graph = window.graph
    links: list[LinkRow] = []
    for (worker, phase, _), group in groupby(nodes, key=lambda item: _what(item[1].activity)):
        members = list(group)
        begin, until = graph.start[members[0][0]], graph.end[members[-1][0]]
        by_rank: dict[Rank, int] = defaultdict(int)
        for node, piece in members:
            rank, start, end = piece.activity.rank, graph.start[node] - t0, graph.end[node] - t0
            by_rank[rank] += graph.duration[node]
            if stretches and stretches[-1][0] == rank.index and sum(stretches[-1][1:]) == start:
                stretches[-1][2] = end - stretches[-1][1]
            elif graph.duration[node]:
                stretches.append([rank.index, start, end - start])
        ranked = sorted(by_rank.items(), key=lambda item: (-item[1], item[0]))
        row = LinkRow(
            worker=worker,
            rank=ranked[0][0].index,
            phase=phase,
            start_ns=begin - t0,
            duration_ns=until - begin,
            after_ns=begin - before,
            by_rank=[[rank.index, ns] for rank, ns in ranked[:MAX_RANKS_OF_LINK]],
        )
        links.append(row)
        before = until
    return links


def _what(activity: Activity) -> tuple[str, str, int]:
    return activity.rank.role, activity.phase, activity.occurrence


def phase_slacks(windows: Sequence[StepGraph]) -> list[SlackRow]:
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
            key = (activity.rank.role, activity.phase)
            mine = slack[key][activity.step]
            mine[activity.rank] = min(spare, mine.get(activity.rank, spare))
            if node in path:
                on_path[key].add(activity.step)
    found = []
    for (worker, phase), steps in slack.items():
        ranks = sorted({rank for ranks in steps.values() for rank in ranks})
        by_rank = [
            [rank.index, round(fmean(mine[rank] for mine in steps.values() if rank in mine))]
            for rank in ranks
        ]
        tightest = round(fmean(min(mine.values()) for mine in steps.values()))
        found.append(SlackRow(worker, phase, len(steps), len(on_path[worker, phase]), tightest, by_rank))
    return sorted(found, key=lambda s: (s.tightest_ns, -s.on_path, s.worker, s.phase))
