"""Rank by step: how much longer each rank worked than its peers, in so many cells as a screen shows."""

from __future__ import annotations

import base64
from collections import defaultdict
from collections.abc import Sequence

import numpy as np

from rlprof_ops.analyze.whole_run.records import Floats, ProcessSteps, RecordedNode
from rlprof_ops.analyze.whole_run.run_data import Heat

MOST_ROWS, MOST_COLUMNS = 256, 400
_STEPS_OF = 100  # cells a factor of one: 1 is half of the peers', 255 is 2.55 more


def heat_maps(nodes: Sequence[RecordedNode]) -> list[Heat]:
    """One of each worker that has at least two ranks."""
    groups: dict[str, list[ProcessSteps]] = defaultdict(list)
    for node in nodes:
        for process in node.processes:
            if not process.leads and len(process.step):
                groups[process.worker].append(process)
    return [heat_map(worker, found) for worker, found in sorted(groups.items()) if _ranks(found) > 1]


def _ranks(processes: Sequence[ProcessSteps]) -> int:
    return len({process.rank for process in processes})


def heat_map(worker: str, processes: Sequence[ProcessSteps]) -> Heat:
    """The map of one worker; where a rank began again, here or on another node, the later life counts."""
    ranks = np.unique([process.rank for process in processes])
    steps = np.unique(np.concatenate([process.step for process in processes]))
    busy: Floats = np.full((len(ranks), len(steps)), np.nan)
    for process in sorted(processes, key=lambda process: int(process.begin_ns[0])):
        busy[np.searchsorted(ranks, process.rank), np.searchsorted(steps, process.step)] = process.busy_s
    if len(ranks) == 2:  # each one's peer is the other
        peers = busy[::-1]
    else:
        peers = np.broadcast_to(np.nanmedian(busy, axis=0), busy.shape)
    factor = np.nan_to_num(busy / np.maximum(peers, 1e-9), nan=-1.0)
    for axis, most in ((0, MOST_ROWS), (1, MOST_COLUMNS)):
        factor = _farthest(factor, axis, most)
    cells = np.where(factor < 0, 0, np.clip(1 + np.rint(_STEPS_OF * factor), 1, 255)).astype(np.uint8)
    return Heat(
        worker=worker,
        count=len(ranks),
        ranks=ranks[_edges(len(ranks), MOST_ROWS)].tolist(),
        steps=steps[_edges(len(steps), MOST_COLUMNS)].tolist(),
        cells=base64.b64encode(cells.tobytes()).decode(),
    )


def _edges(count: int, most: int) -> list[int]:
    groups = min(count, most)
    return [count * group // groups for group in range(groups)]


def _farthest(factor: Floats, axis: int, most: int) -> Floats:
    """Of each group along `axis` the factor that is farthest above one, else the least."""
    edges = _edges(factor.shape[axis], most)
    if len(edges) == factor.shape[axis]:
        return factor
    high: Floats = np.maximum.reduceat(factor, edges, axis=axis)
    known = np.where(factor < 0, np.inf, factor)
    low: Floats = np.minimum.reduceat(known, edges, axis=axis)
    return np.where((high >= 0) & (1 / np.maximum(low, 1e-9) > np.maximum(high, 1e-9)), low, high)
