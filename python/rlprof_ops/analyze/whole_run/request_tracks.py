"""Every request of the steps with the longest tails, to be drawn replica by replica."""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence

from rlprof_ops.analyze.columns import Ints
from rlprof_ops.analyze.whole_run.run_data import RequestTracks
from rlprof_ops.runtime.request_log import EngineRequest

MOST_STEPS, MOST_REQUESTS = 3, 6000  # that are drawn
TAIL_AFTER = 0.95
ABSENT = -1


def tracks_of(
    window: tuple[int, int, int], rows: Sequence[tuple[tuple[str, int], EngineRequest]], most: int
) -> RequestTracks:
    """Of one step (its number, begin and end): a replica's worker and rank, and its request, in the order in
    which they were done. Of too many the longest stay.
    """
    step, begin_ns, end_ns = window
    kept = sorted(range(len(rows)), key=lambda n: rows[n][1].arrival_ns - rows[n][1].finished_ns)[:most]
    shown = [rows[n] for n in sorted(kept)]
    replicas = sorted({replica for replica, _ in shown})
    reasons = list(dict.fromkeys(row.reason for _, row in shown))
    groups = {group: n for n, group in enumerate(dict.fromkeys(row.group for _, row in shown))}

    def us(at_ns: int | None) -> int:
        return ABSENT if at_ns is None else max(0, (at_ns - begin_ns) // 1000)

    return RequestTracks(
        step=step,
        phase_us=us(end_ns),
        left_out=len(rows) - len(shown),
        tail_us=us(rows[math.ceil(round(TAIL_AFTER * len(rows), 6)) - 1][1].finished_ns),
        replicas=[f"{worker} {rank}" for worker, rank in replicas],
        reasons=reasons,
        ids=[row.id for _, row in shown],
        rows=[
            [
                replicas.index(replica),
                us(row.arrival_ns),
                us(row.scheduled_ns),
                us(row.first_token_ns),
                us(row.finished_ns),
                row.prompt_tokens,
                row.tokens,
                ABSENT if row.group is None else groups[row.group],
                row.turn,
                ABSENT if row.preemptions is None else row.preemptions,
                reasons.index(row.reason),
            ]
            for replica, row in shown
        ],
    )


def packed(starts: Ints, ends: Ints) -> list[int]:
    """The lane of each stretch, the lowest that is free when it begins; `starts` do not fall."""
    busy: list[tuple[int, int]] = []
    free: list[int] = []
    lanes: list[int] = []
    most = 0
    for begin, end in zip(starts.tolist(), ends.tolist(), strict=True):
        while busy and busy[0][0] <= begin:
            heapq.heappush(free, heapq.heappop(busy)[1])
        if free:
            lane = heapq.heappop(free)
        else:
            lane, most = most, most + 1
        heapq.heappush(busy, (end, lane))
        lanes.append(lane)
    return lanes
