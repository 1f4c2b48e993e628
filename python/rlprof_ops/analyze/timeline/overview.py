"""The overview: steps, phases, collectives, GPU busy and the longest kernels of every rank, in a file of
bounded size.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from msgspec import Struct

from rlprof_ops.analyze.columns import Coder, Codes, Ints, Trace, codes_where
from rlprof_ops.analyze.kernel_names import communicates
from rlprof_ops.analyze.metrics.collective_events import CollectiveEvents, find_collective_events
from rlprof_ops.analyze.metrics.gpu_time import gpu_unions
from rlprof_ops.analyze.metrics.phases import drawn, find_phases, find_steps
from rlprof_ops.analyze.process_traces import by_process
from rlprof_ops.analyze.readers import UnreadableReport, read_report
from rlprof_ops.analyze.run.clocks import Clocks
from rlprof_ops.analyze.run.identity import ReportFile
from rlprof_ops.analyze.run.process_summary import Unread
from rlprof_ops.analyze.timeline import packets

MAX_SLICES = 400_000  # of all ranks together: 57 bytes each, 23 MB at most
MAX_BINS = 1000
LANES = 8


class Row(Struct, frozen=True):
    """Slices of one track of a rank: non-overlapping within a lane, names as text codes of the part."""

    track: str
    lane: Codes
    start: Ints
    end: Ints
    name: Codes


class Part(Struct, frozen=True):
    """What one report adds to the overview."""

    report: ReportFile
    host: str
    rank: int
    pid: int
    on_utc: bool
    names: tuple[str, ...]
    rows: tuple[Row, ...]
    busy_time: Ints  # starts of the bins
    busy_permille: Ints
    collective_events: tuple[CollectiveEvents, ...]
    world_rank: int  # as torch.distributed counts in the world of its process; -1: untold
    whole: bool = True  # read to its end
    told_apart: bool = False  # named with its pid: another process has its host, worker and rank

    @property
    def label(self) -> str:
        name = f"{self.host or '?'}/{self.report.worker}/{self.rank}"
        return name + (f" (pid {self.pid})" if self.told_apart else "")


def parts_of(root: Path, report: ReportFile, budget: int, cache: bool = True) -> tuple[Part, ...] | Unread:
    """Reads one report for the overview, each process in it apart; `budget`: slices that all of them may add
    besides their steps.
    """
    begun = time.perf_counter()
    try:
        trace = read_report(root / report.path, cache=cache)
    except UnreadableReport as error:
        return Unread(report, error.reason, time.perf_counter() - begun)
    return tuple(
        _part(one, report.completed(one.origin), budget // one.origin.processes) for one in by_process(trace)
    )


def _part(trace: Trace, report: ReportFile, budget: int) -> Part:
    steps = find_steps(trace, report.start, report.stop, report.clock)
    segments = drawn(find_phases(trace, steps))[:budget]
    names = Coder[str]()
    rows = [
        _row(
            "steps", [(s.start, s.end, names.one(f"step {s.step}" if s.marked else "capture")) for s in steps]
        ),
        _row("phases", [(s.start, s.end, names.one(s.phase)) for s in segments]),
    ]
    gpu = trace.gpu
    left = max(budget - len(segments), 0)
    busy_time, busy_permille = np.empty(0, np.int64), np.empty(0, np.int64)
    if len(gpu):
        talking = codes_where(trace.names, communicates)[gpu.name]
        for label, mine, share in (
            ("collectives", talking, left // 3),
            ("longest kernels", ~talking, left - left // 3),
        ):
            index = np.flatnonzero(mine & (gpu.duration > 0))
            if len(index) > share:
                index = (
                    np.sort(index[np.argpartition(-gpu.duration[index], share)[:share]])
                    if share
                    else index[:0]
                )
            codes = names.encode([trace.names[n] for n in gpu.name[index].tolist()])
            rows.append(_lanes(label, gpu.start[index], gpu.end[index], codes))
        unions = gpu_unions(trace.gpu, trace.names)
        bins = int(min(MAX_BINS, max(2, budget // 4)))
        edges = np.linspace(unions.start, unions.end, bins + 1).astype(np.int64)
        busy = unions.busy.within(edges[:-1], edges[1:])
        busy_time, busy_permille = edges[:-1], busy * 1000 // np.maximum(np.diff(edges), 1)
    else:
        for meeting in find_collective_events(trace)[:4]:
            count = min(len(meeting.start), left // 3)
            codes = np.full(count, names.one(meeting.key), np.int32)
            rows.append(_lanes("collectives", meeting.start[:count], meeting.end[:count], codes))
    return Part(
        report=report,
        host=report.host,
        rank=report.rank or 0,
        pid=report.pid if report.pid is not None and trace.origin.processes == 1 else trace.origin.pid,
        on_utc=trace.origin.on_utc,
        names=names.values(),
        rows=tuple(row for row in rows if len(row.start)),
        busy_time=busy_time,
        busy_permille=busy_permille,
        collective_events=find_collective_events(trace),
        world_rank=trace.origin.world_rank,
        whole=not trace.truncated,
    )


def _row(track: str, items: list[tuple[int, int, int]]) -> Row:
    start, end, name = (np.array([item[i] for item in items], np.int64) for i in range(3))
    return _lanes(track, start, end, name.astype(np.int32))


def _lanes(track: str, start: Ints, end: Ints, name: Codes) -> Row:
    """Overlapping slices go to side lanes, for slices of one track must nest; beyond `LANES` they are left
    out.
    """
    order = np.argsort(start, kind="stable")
    start, end, name = start[order], np.maximum(end[order], start[order] + 1), name[order]
    lane = np.zeros(len(start), np.int32)
    if len(start) > 1 and bool((start[1:] < np.maximum.accumulate(end)[:-1]).any()):
        free = [np.iinfo(np.int64).min] * LANES
        for i, (begins, ends) in enumerate(zip(start.tolist(), end.tolist(), strict=True)):
            lane[i] = next((n for n in range(LANES) if free[n] <= begins), -1)
            if lane[i] >= 0:
                free[lane[i]] = ends
    keep = lane >= 0
    return Row(track, lane[keep], start[keep], end[keep], name[keep])


def encode(parts: Sequence[Part], clocks: Clocks, title: str) -> list[bytes]:
    """The overview as pieces of a Perfetto trace, all times aligned by `clocks`; ranks in order of worker,
    rank, host.
    """
    names = Coder[str]()
    ranks: dict[str, list[Part]] = {}
    for part in sorted(parts, key=lambda p: (p.report.worker, p.rank, p.host, p.pid, p.report.start or 0)):
        ranks.setdefault(part.label, []).append(part)
    descriptors = [packets.track(1, title)]
    uuid = 1
    starts, ends, tracks, labels, count_time, count_track, count_value = ([] for _ in range(7))
    for order, (label, mine) in enumerate(ranks.items()):
        uuid += 1
        rank_uuid = uuid
        descriptors.append(packets.track(rank_uuid, label, parent=1, order=order))
        known: dict[tuple[str, int], int] = {}
        for part in mine:
            clock = clocks.of(part.host)

            codes = np.array([names.one(name) for name in part.names] or [0], np.int64) + 1
            for row in part.rows:
                for lane in np.unique(row.lane).tolist():
                    key = (row.track, int(lane))
                    if key not in known:
                        uuid += 1
                        known[key] = uuid
                        name = row.track if lane == 0 else f"{row.track} ({lane + 1})"
                        descriptors.append(packets.track(uuid, name, parent=rank_uuid, order=len(known)))
                    pick = row.lane == lane
                    begin = clock.all_aligned(row.start[pick])
                    starts.append(begin)
                    ends.append(np.maximum(clock.all_aligned(row.end[pick]), begin + 1))
                    tracks.append(np.full(int(pick.sum()), known[key], np.int64))
                    labels.append(codes[row.name[pick]])
            if len(part.busy_time):
                key = ("GPU busy", 0)
                if key not in known:
                    uuid += 1
                    known[key] = uuid
                    descriptors.append(
                        packets.track(uuid, "GPU busy", parent=rank_uuid, order=0, counter_unit="‰")
                    )
                count_time.append(clock.all_aligned(part.busy_time))
                count_track.append(np.full(len(part.busy_time), known[key], np.int64))
                count_value.append(part.busy_permille)
    out = [packets.first_packet([str(name) for name in names.values()]), *descriptors]
    if starts:
        out.append(
            packets.slices(*(np.concatenate(column) for column in (starts, ends, tracks, labels))).tobytes()
        )
    if count_time:
        out.append(
            packets.counters(
                *(np.concatenate(column) for column in (count_time, count_track, count_value))
            ).tobytes()
        )
    return out
