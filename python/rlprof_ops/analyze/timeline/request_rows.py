"""The requests of engines as tracks of the overview: those that were in flight while something was
captured.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from rlprof_ops.analyze.columns import Coder
from rlprof_ops.analyze.run.identity import ReportFile
from rlprof_ops.analyze.timeline.overview import Part, Row
from rlprof_ops.analyze.whole_run.last_requests import ReplicaRequests, read_replicas
from rlprof_ops.analyze.whole_run.request_tracks import packed
from rlprof_ops.runtime.request_log import EngineRequest

MOST_REQUESTS = 20_000  # of all replicas, the longest of each
_BACKEND = "requests"


def request_parts(root: Path, parts: Sequence[Part]) -> Iterator[Part]:
    """A part each replica, below the rank that its process is; none where captures tell no time of day."""
    rows = [row for part in parts if part.on_utc for row in part.rows if len(row.start)]
    replicas = read_replicas(root) if rows else []
    if not replicas:
        return
    begin = min(int(row.start.min()) for row in rows)
    end = max(int(row.end.max()) for row in rows)
    for replica in replicas:
        inside = np.flatnonzero((replica.begin_ns < end) & (replica.end_ns > begin))
        longest = np.argsort(replica.begin_ns[inside] - replica.end_ns[inside], kind="stable")
        kept = inside[longest[: MOST_REQUESTS // len(replicas)]]
        if len(kept):
            kept = kept[np.argsort(replica.begin_ns[kept], kind="stable")]
            yield _part(replica, [replica.rows[place] for place in kept.tolist()])


def _part(replica: ReplicaRequests, rows: Sequence[EngineRequest]) -> Part:
    """What a request waited for, and what it then made, one after the other on its lane."""
    begins = np.array([row.arrival_ns for row in rows], np.int64)
    ends = np.array([max(row.finished_ns, row.arrival_ns + 1) for row in rows], np.int64)
    names, slices = Coder[str](), []
    for row, end, lane in zip(rows, ends.tolist(), packed(begins, ends), strict=True):
        told = f"{row.id}: {row.tokens} tokens, {row.reason}" + (f", turn {row.turn}" if row.turn > 1 else "")
        edges = [row.arrival_ns, row.scheduled_ns or row.first_token_ns or row.arrival_ns]
        edges += [row.first_token_ns or edges[1], end]
        for name, start, stop in zip(("queued", "prefill", told), edges, edges[1:], strict=False):
            if stop > start:
                slices.append((lane, start, stop, names.one(name)))
    lanes, starts, stops, codes = (np.array([each[n] for each in slices], np.int64) for n in range(4))
    return Part(
        report=ReportFile(
            "", _BACKEND, replica.worker, replica.rank, replica.node, replica.pid, None, None, None, 0
        ),
        host=replica.node,
        rank=replica.rank,
        pid=replica.pid,
        on_utc=True,
        names=names.values(),
        rows=(Row("requests", lanes.astype(np.int32), starts, stops, codes.astype(np.int32)),),
        busy_time=np.empty(0, np.int64),
        busy_permille=np.empty(0, np.int64),
        collective_events=(),
        world_rank=-1,
    )
