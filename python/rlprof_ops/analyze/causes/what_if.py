"""What a change would bring: the measured graph replayed with other durations.

A replay keeps who waited for whom and the time between, so it sees when another chain becomes the longest. It
does not know what the change costs elsewhere: a GPU taken from training for generation, a cache that no
longer fits.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Callable, Collection, Sequence
from math import inf
from statistics import fmean, median, median_low
from typing import NamedTuple

from rlprof_ops.analyze.causes.collectives import SlowGroup
from rlprof_ops.analyze.causes.dependencies import Piece, StepGraph
from rlprof_ops.analyze.causes.graph import replayed
from rlprof_ops.analyze.causes.pauses import Pauses
from rlprof_ops.analyze.causes.stages import Stages
from rlprof_ops.analyze.causes.waiting import ROLLOUT, TRAINING
from rlprof_ops.analyze.report_model import ChangeKind, StragglerRow, WhatIfRow
from rlprof_ops.analyze.run.merge import Merged, Rank

FASTER = 0.2
MIN_SHARE = 0.001  # of a step; less is not said
MIN_SHARE_OF_PERIOD = 0.05  # where steps overlap: less may be how their run was joined to itself
MIN_SHARE_OF_PATH = 0.03  # a phase that is on the path for less is not asked about
Times = tuple[list[int], list[int]]  # duration and lag of every piece
Change = Callable[[StepGraph], Times]


class AskedChange(NamedTuple):
    """A change that is asked about; the names are those of its row."""

    kind: ChangeKind
    text: str
    worker: str
    phase: str
    rank: int | None
    change: Change
    node: str | None = None
    members: tuple[int, ...] = ()


def what_ifs(
    merged: Merged,
    windows: Sequence[StepGraph],
    stragglers: Sequence[StragglerRow],
    stages: Stages | None = None,
    groups: Sequence[SlowGroup] = (),
    pauses: Sequence[Pauses] = (),
) -> tuple[WhatIfRow, ...]:
    """Every change that is asked about and would save anything, the largest first."""
    stages = stages or Stages()
    step_ns = mean_step(merged)
    asked = [
        *_slow_nodes(merged, windows, stragglers, stages),
        *_slow_ranks(merged, windows, stragglers, stages),
        *_slow_groups(groups),
        *_pauses(() if merged.periods else pauses),
        *_phases(windows, step_ns),
        *_uneven(windows, stages),
        *_rollout_workers(windows),
    ]
    found = []
    for kind, text, worker, phase, rank, change, node, members in asked:
        saves = saved(windows, change)
        if step_ns and saves >= (MIN_SHARE_OF_PERIOD if merged.periods else MIN_SHARE) * step_ns:
            share = round(saves / step_ns, 5)
            found.append(WhatIfRow(kind, text, worker, phase, rank, round(saves), share, node, list(members)))
    return tuple(sorted(found, key=lambda w: -w.saves_ns))


def saved(windows: Sequence[StepGraph], change: Change) -> float:
    """Nanoseconds a step that a change takes off."""
    steps = sum(window.steps for window in windows)
    gained = sum(window.graph.length - replayed(window.graph, *change(window)) for window in windows)
    return gained / max(steps, 1)


def mean_step(merged: Merged) -> float:
    """The mean length of a step of the run, nanoseconds; where steps overlap, from one to the next."""
    if merged.periods:
        return fmean(end - start for start, end in merged.periods.values())
    bounds: dict[int, tuple[int, int, int]] = {}
    for row in merged.steps:
        start, end, count = bounds.get(row.step, (row.start, row.end, 1))
        bounds[row.step] = (min(start, row.start), max(end, row.end), max(count, row.count or 1))
    steps = sum(count for _, _, count in bounds.values())
    return sum(end - start for start, end, _ in bounds.values()) / steps if steps else 0.0


def _slow_nodes(
    merged: Merged, windows: Sequence[StepGraph], stragglers: Sequence[StragglerRow], stages: Stages
) -> list[AskedChange]:
    """Each slow node in all that it is slow in, for that is what mending it would bring."""
    nodes: dict[str, list[StragglerRow]] = defaultdict(list)
    for row in stragglers:
        if row.node is not None:
            nodes[row.node].append(row)
    asked = []
    for node, rows in nodes.items():
        slow = {(merged.ranks[rank], row.phase) for row in rows for rank in row.ranks}
        workers = sorted({rank.worker for rank, _ in slow})
        phases = list(dict.fromkeys(row.phase for row in rows))
        worker, phase = ("" if len(names) > 1 else names[0] for names in (workers, phases))
        text = f"node {node} like the other nodes in {' and '.join(phases)}"
        change = like_others(windows, slow, stages, max(row.excess_ns for row in rows))
        asked.append(AskedChange("like_peers", text, worker, phase, None, change, node))
    return asked


def _slow_ranks(
    merged: Merged, windows: Sequence[StepGraph], stragglers: Sequence[StragglerRow], stages: Stages
) -> list[AskedChange]:
    """Each slow rank, and with it the stages of its pipeline, which have waited for it all the time."""
    asked = []
    for row in stragglers:
        if row.node is None:
            rank = merged.ranks[row.rank]
            text = f"{rank.label} like its peers in {row.phase}"
            mates = {(mate, row.phase) for mate in stages.of_its_pipeline(rank)}
            change = like_others(windows, mates, stages, row.excess_ns)
            asked.append(AskedChange("like_peers", text, rank.worker, row.phase, rank.index, change))
    return asked


def _slow_groups(groups: Sequence[SlowGroup]) -> list[AskedChange]:
    return [
        AskedChange(
            "like_peers",
            f"{group.kind.group} with slow links like its siblings in {group.kind.op}",
            group.kind.worker,
            "",
            None,
            with_links_of_siblings(group),
            None,
            group.ranks,
        )
        for group in groups
    ]


def _pauses(pauses: Sequence[Pauses]) -> list[AskedChange]:
    return [
        AskedChange(
            "no_pauses",
            f"no pauses of {each.worker} in {each.phase} ({each.name or 'host'})",
            each.worker,
            each.phase,
            None,
            without_pauses(each),
            None,
            each.ranks,
        )
        for each in pauses
    ]


def _phases(windows: Sequence[StepGraph], step_ns: float) -> list[AskedChange]:
    spent: dict[tuple[str, str], int] = defaultdict(int)
    steps = max(sum(window.steps for window in windows), 1)
    for (worker, _, phase, _, _), group in _groups(windows).items():
        spent[worker, phase] += max(piece.activity.busy_ns for _, _, piece in group)
    asked: list[AskedChange] = []
    for phase in sorted({phase for _, phase in spent}):
        workers = [worker for worker, other in spent if other == phase]
        if max(spent[worker, phase] for worker in workers) / steps < MIN_SHARE_OF_PATH * step_ns:
            continue
        main = max(workers, key=lambda worker: spent[worker, phase])
        percent = round(100 * FASTER)
        asked.append(
            AskedChange("faster", f"{phase} {percent} % faster", main, phase, None, faster(phase, FASTER))
        )
        if phase == "weight_sync":
            asked.append(
                AskedChange(
                    "overlapped", "weight_sync hidden behind other work", main, phase, None, hidden(phase)
                )
            )
    return asked


def _uneven(windows: Sequence[StepGraph], stages: Stages) -> list[AskedChange]:
    kinds = {
        (worker, phase)
        for (worker, _, phase, _, _), group in _groups(windows).items()
        if phase in ROLLOUT
        and len(group) > 1
        and len({stages.of(piece.activity.rank, phase) for _, _, piece in group}) == 1
    }
    return [
        AskedChange(
            "even",
            f"no rank of {worker} longer in {phase} than the median one",
            worker,
            phase,
            None,
            even(worker, phase),
        )
        for worker, phase in sorted(kinds)
    ]


def _rollout_workers(windows: Sequence[StepGraph]) -> list[AskedChange]:
    does: dict[str, set[str]] = defaultdict(set)
    for (worker, _, phase, _, _), group in _groups(windows).items():
        if not group[0][2].activity.rank.is_controller:  # others generate for it
            does[worker].add(phase)
    return [
        AskedChange("one_more", f"one more {worker}", worker, phase, None, one_more(worker, phase))
        for worker, phases in sorted(does.items())
        for phase in sorted(phases & ROLLOUT)
        if not phases & TRAINING
    ]


# What changes: each gives the durations and lags of a window's pieces after it.


def faster(phase: str, share: float) -> Change:
    """All work in a phase takes `share` less time; pauses inside stay."""

    def changed(window: StepGraph) -> Times:
        duration, lag = list(window.graph.duration), list(window.graph.lag)
        for node, piece in enumerate(window.pieces):
            if piece is not None and piece.activity.phase == phase:
                activity = piece.activity
                busy = activity.busy_ns / max(activity.end - activity.start, 1)
                duration[node] -= round(share * busy * duration[node])
        return duration, lag

    return changed


def hidden(phase: str) -> Change:
    """A phase takes no time of its own, and nothing waits for its begin."""

    def changed(window: StepGraph) -> Times:
        duration, lag = list(window.graph.duration), list(window.graph.lag)
        for node, piece in enumerate(window.pieces):
            if piece is not None and piece.activity.phase == phase:
                duration[node] = lag[node] = 0
        return duration, lag

    return changed


def like_others(
    windows: Sequence[StepGraph], slow: Collection[tuple[Rank, str]], stages: Stages, excess_ns: float = inf
) -> Change:
    """Slow ranks take as long in each piece of their phases as the other ranks of their stage do: their
    median over all steps. From step to step each keeps its own noise, for the last of many ranks is later
    than a typical one.

    Another rank whose GPU ran nothing for at least half of `excess_ns` more than the least idle one of its
    stage waited for the slow ones, though no collective tells so, and then does not.
    """

    def kind_of(piece: Piece) -> tuple[str, str, int, int, int | None]:
        a = piece.activity
        return a.rank.role, a.phase, a.occurrence, piece.number, stages.of(a.rank, a.phase)

    def is_slow(piece: Piece) -> bool:
        return (piece.activity.rank, piece.activity.phase) in slow

    def without_waiting(window: StepGraph) -> list[int]:
        duration = list(window.graph.duration)
        groups: dict[object, list[tuple[int, Piece]]] = defaultdict(list)
        for node, piece in enumerate(window.pieces):
            if piece is not None:
                groups[piece.activity.step, kind_of(piece)].append((node, piece))
        for group in groups.values():
            least = min(piece.activity.idle_ns for _, piece in group)
            for node, piece in group:
                waited = piece.activity.idle_ns - least
                if 2 * waited >= excess_ns and not is_slow(piece):
                    duration[node] = max(duration[node] - waited, 0)
        return duration

    times: dict[object, tuple[list[int], list[int]]] = defaultdict(lambda: ([], []))
    for window in windows:
        for length, piece in zip(without_waiting(window), window.pieces, strict=True):
            if piece is not None:
                times[kind_of(piece)][is_slow(piece)].append(length)
    share = {
        kind: min(median(others) / max(median(mine), 1), 1.0)
        for kind, (others, mine) in times.items()
        if others and mine
    }

    def changed(window: StepGraph) -> Times:
        duration = [
            round(length * share.get(kind_of(piece), 1.0)) if piece and is_slow(piece) else length
            for length, piece in zip(without_waiting(window), window.pieces, strict=True)
        ]
        return duration, list(window.graph.lag)

    return changed


def with_links_of_siblings(group: SlowGroup) -> Change:
    """What comes after a collective of the group begins as much sooner as its transfer is shorter."""

    def changed(window: StepGraph) -> Times:
        lag = list(window.graph.lag)
        for node, piece in enumerate(window.pieces):
            if piece is not None and 0 < piece.number <= len(piece.activity.meetings):
                meeting = piece.activity.meetings[piece.number - 1]
                if (meeting.name, meeting.communicator) == (group.key, group.communicator):
                    lag[node] = round(lag[node] * group.siblings_ns / group.transfer_ns)
        return list(window.graph.duration), lag

    return changed


def without_pauses(pauses: Pauses) -> Change:
    """Work in which a GPU paused is shorter by that."""

    def changed(window: StepGraph) -> Times:
        duration = list(window.graph.duration)
        for node, piece in enumerate(window.pieces):
            if piece is not None and piece.activity.phase == pauses.phase:
                begin, end = window.graph.start[node], window.graph.end[node]
                spans = pauses.when.get(piece.activity.rank, ())
                paused = sum(max(min(end, b) - max(begin, a), 0) for a, b in spans)
                duration[node] = max(duration[node] - paused, 0)
        return duration, list(window.graph.lag)

    return changed


def even(worker: str, phase: str) -> Change:
    """No rank of a worker takes longer in a phase than the median one; of two, than the faster."""

    def changed(window: StepGraph) -> Times:
        duration, lag = list(window.graph.duration), list(window.graph.lag)
        for (other, _, its_phase, _, _), group in _groups([window]).items():
            if (other, its_phase) == (worker, phase):
                most = median_low(duration[node] for _, node, _ in group)
                for _, node, _ in group:
                    duration[node] = min(duration[node], most)
        return duration, lag

    return changed


def one_more(worker: str, phase: str) -> Change:
    """The work of a phase shared by one rank more: parts that ranks did one by one are dealt out anew, each
    to whoever is free first; work that a rank did in one part is taken as divisible.
    """

    def changed(window: StepGraph) -> Times:
        duration, lag = list(window.graph.duration), list(window.graph.lag)
        for (other, _, its_phase, _, _), group in _groups([window]).items():
            if (other, its_phase) != (worker, phase):
                continue
            parts = [piece.activity.parts for _, _, piece in group]
            if max(map(len, parts)) > 1:
                most = _dealt([part for mine in parts for part in mine], len(group) + 1)
                for _, node, _ in group:
                    duration[node] = min(duration[node], most)
            else:
                for _, node, _ in group:
                    duration[node] = duration[node] * len(group) // (len(group) + 1)
        return duration, lag

    return changed


def _dealt(parts: Sequence[int], workers: int) -> int:
    """When the last of the parts ends, the longest dealt first."""
    free = [0] * workers
    for part in sorted(parts, reverse=True):
        heapq.heapreplace(free, free[0] + part)
    return max(free)


Place = tuple[StepGraph, int, Piece]


def _groups(windows: Sequence[StepGraph]) -> dict[tuple[str, int, str, int, int], list[Place]]:
    """Worker, step, phase, occurrence and number of a piece -> that piece of every rank."""
    groups: dict[tuple[str, int, str, int, int], list[Place]] = defaultdict(list)
    for window in windows:
        for node, piece in enumerate(window.pieces):
            if piece is not None:
                a = piece.activity
                groups[a.rank.role, a.step, a.phase, a.occurrence, piece.number].append((window, node, piece))
    return groups
