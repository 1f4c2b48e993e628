"""One trace of each process that a report holds: nsys writes a worker's whole process tree, or a whole node,
into one report, and numbers launches anew in every process.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from msgspec.structs import replace

from rlprof_ops.analyze.columns import NO_VALUE, Codes, Flags, Spans, Trace, join, take
from rlprof_ops.analyze.readers.spill import release


def by_process(trace: Trace) -> Iterator[Trace]:
    """The trace of each process that is an identity of its own, by its first GPU and its pid.

    That is every process with ranges of the application, and every one that works on a GPU. Where only one
    process has ranges, the others are its children (vLLM's engine cores): they are in the phases that it is
    in, and when it does no work on a GPU itself it is none of the identities.
    """
    if trace.origin.kind != "nsys" or (len(trace.gpu) and int(trace.gpu.track.max()) < 0):
        yield trace  # of one process, or the export does not tell whose the work is
        return
    pids, of_track = _pids(trace)
    marking = _present(of_track, trace.ranges.track)
    working = _present(of_track, trace.gpu.track)
    release(trace.ranges, trace.launches, trace.gpu)
    chosen = working if len(marking) < 2 and working else marking | working
    if len(chosen) < 2:
        one = min(chosen, default=NO_VALUE)
        yield _of_one(trace, of_track, one, _pid(pids, min(marking, default=one), trace))
        return
    owner = min(marking) if len(marking) == 1 else None
    order = sorted(chosen, key=lambda code: (_first_gpu(trace, of_track, code), int(pids[code])))
    for place, code in enumerate(order):
        mine = _part(trace, of_track, code, code if owner is None else owner)
        rank = trace.origin.rank if trace.origin.rank != NO_VALUE else place
        yield replace(
            mine, origin=replace(trace.origin, pid=int(pids[code]), rank=rank, processes=len(order))
        )
        release(trace.ranges, trace.ops, trace.launches, trace.gpu)


def _pids(trace: Trace) -> tuple[tuple[str, ...], Codes]:
    """The distinct pids of a trace's tracks, and the code of each track's."""
    pids = tuple(dict.fromkeys(pid for pid, _ in trace.tracks))
    code = {pid: i for i, pid in enumerate(pids)}
    # one more, so that NO_VALUE, the last, is of no process
    return pids, np.array([*(code[pid] for pid, _ in trace.tracks), NO_VALUE], np.int32)


def _pid(pids: tuple[str, ...], code: int, trace: Trace) -> int:
    return int(pids[code]) if code >= 0 and pids[code].isdigit() else trace.origin.pid


def _present(of_track: Codes, track: Codes) -> set[int]:
    used = np.flatnonzero(np.bincount(track[track >= 0], minlength=1))
    return {int(of_track[code]) for code in used}


def _first_gpu(trace: Trace, of_track: Codes, code: int) -> int:
    devices = trace.gpu.device[_rows(of_track, trace.gpu.track, code)]
    return int(devices.min()) if len(devices) else 1 << 31


def _rows(of_track: Codes, track: Codes, code: int) -> Flags:
    rows: Flags = of_track[track] == code
    return rows


def _of_one(trace: Trace, of_track: Codes, code: int, pid: int) -> Trace:
    """The trace of the one process that works: calls of others must not pass for its launches."""
    origin = replace(trace.origin, pid=pid)
    if code >= 0 and len(_present(of_track, trace.launches.track)) > 1 and len(trace.gpu):
        mine = _rows(of_track, trace.launches.track, code)
        release(trace.launches)
        return replace(trace, origin=origin, launches=take(trace.launches, mine))
    return replace(trace, origin=origin)


def _part(trace: Trace, of_track: Codes, code: int, marked_by: int) -> Trace:
    ranges = take(trace.ranges, _rows(of_track, trace.ranges.track, marked_by))
    ops = take(trace.ops, _rows(of_track, trace.ops.track, code)) if len(trace.ops) else join(Spans, [])
    launches = take(trace.launches, _rows(of_track, trace.launches.track, code))
    gpu = take(trace.gpu, _rows(of_track, trace.gpu.track, code))
    memory = take(trace.memory, _rows(of_track, trace.memory.track, code))
    own_ranges = len(ranges) if marked_by == code else 0
    events = own_ranges + len(ops) + len(launches) + len(gpu) + len(memory)
    return replace(trace, ranges=ranges, ops=ops, launches=launches, gpu=gpu, memory=memory, events=events)
