"""How many ranks each worker has in the whole job, and which of them no report is of."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from itertools import islice

from rlprof_ops.analyze.report_model import WorkerRanks
from rlprof_ops.analyze.run.merge import Merged

MOST_LISTED = 1000  # missing ranks of a worker


def worker_ranks(
    merged: Merged, told: Mapping[str, int], planned: Collection[tuple[str, int]] | None
) -> list[WorkerRanks]:
    """One row a worker that was captured and whose size is known: by what the job `told`, else by its traces.

    planned: (worker, rank) of all captures that were asked for, where a manifest lists them
    """
    seen: dict[str, set[int]] = defaultdict(set)
    for rank in merged.ranks:
        seen[rank.worker].add(rank.rank)
    sizes = _told_by_traces(merged) | dict(told)
    rows = []
    for worker, ranks in sorted(seen.items()):
        world = sizes.get(worker, 0)
        if max(ranks) < world:
            asked = None if planned is None else {rank for name, rank in planned if name == worker}
            rows.append(WorkerRanks(worker, len(ranks), world, *_missing(world, ranks, asked)))
    return rows


def _missing(world: int, seen: set[int], asked: set[int] | None) -> tuple[list[int], int]:
    """The first ranks that are not `seen`, and how many more there are: a trace may say any world."""
    meant: Sequence[int] = (
        range(world) if asked is None else sorted(rank for rank in asked if 0 <= rank < world)
    )
    listed = list(islice((rank for rank in meant if rank not in seen), MOST_LISTED))
    return listed, len(meant) - len(seen if asked is None else seen & asked) - len(listed)


def _told_by_traces(merged: Merged) -> dict[str, int]:
    """Worker -> the world that its traces count their ranks in.

    Nothing is said of a worker whose ranks are numbered otherwise, as those of several engines are, nor where
    workers without a rank in common have worlds of one size: they may be parts of one world.
    """
    worlds: dict[str, set[int]] = defaultdict(set)
    ranks: dict[str, list[int]] = defaultdict(list)
    for rank in merged.ranks:
        ranks[rank.worker].append(rank.rank)
    for summary in merged.summaries:
        if summary.world_size > 0:
            of_its_own = summary.world_rank == summary.rank
            worlds[summary.report.worker].add(summary.world_size if of_its_own else 0)
    one = {worker: min(sizes) for worker, sizes in worlds.items() if len(sizes) == 1}
    return {
        worker: size
        for worker, size in one.items()
        if len(set(ranks[worker])) == len(ranks[worker])
        and all(
            set(ranks[worker]) & set(ranks[other])
            for other, its_size in one.items()
            if other != worker and its_size == size
        )
    }
