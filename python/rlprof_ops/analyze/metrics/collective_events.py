"""Moments at which ranks meet: collectives by communicator, in order, to align clocks by and to see who
came last.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from rlprof_ops.analyze.columns import Collective, Ints, Trace, codes_where, distinct
from rlprof_ops.analyze.kernel_names import communicates
from rlprof_ops.analyze.metrics.host_waits import meets
from rlprof_ops.analyze.readers.spill import release, rows_named

MAX_MEETINGS = 20_000  # a trace: enough for any fit, small enough to pass between processes
_POINT_TO_POINT = ("send", "recv", "coalesced")
_WORLD = "default_pg"  # as torch describes the group of all ranks


class CollectiveEvents(Struct, frozen=True):
    """All collective events of one kind in one trace: kernels on a GPU where there are any, else ranges on
    the host.
    """

    key: str  # what the communicator is for and the operation, for people
    on_gpu: bool
    start: Ints
    end: Ints
    sequence: Ints  # -1 where the trace does not number them
    communicator: str = ""  # its name and its members: two with one description stay two
    size: int = -1  # ranks in it, -1 where untold


def find_collective_events(trace: Trace) -> tuple[CollectiveEvents, ...]:
    """The collective events of a trace, in order of time; empty where nothing communicates or each rank is
    alone.
    """
    found = _kernels(trace) or _host(trace)
    release(trace.ranges, trace.ops, trace.gpu)
    budget, kept = MAX_MEETINGS, []
    for meeting in sorted(found, key=lambda m: -len(m.start)):
        if budget <= 0:
            break
        part = slice(0, budget)
        kept.append(
            replace(
                meeting,
                start=meeting.start[part],
                end=meeting.end[part],
                sequence=meeting.sequence[part],
            )
        )
        budget -= len(meeting.start)
    return tuple(kept)


def _kernels(trace: Trace) -> list[CollectiveEvents]:
    gpu = trace.gpu
    rows = rows_named(gpu, codes_where(trace.names, communicates))
    rows = rows[gpu.collective[rows] >= 0]
    found: dict[tuple[str, str, str, int], list[int]] = {}
    for code in distinct(gpu.collective[rows]).tolist():
        said = trace.collectives[code]
        if said.group_size != 1 and not any(word in said.op.lower() for word in _POINT_TO_POINT):
            communicator = communicator_of(said, trace.origin.world_size)
            if communicator is not None:
                op = said.op.strip("_").lower()
                found.setdefault((said.group, communicator, op, said.group_size), []).append(code)
    collective_events = []
    for (group, communicator, op, size), codes in found.items():
        mine = rows[np.isin(gpu.collective[rows], codes)]
        sequences = np.array([c.sequence for c in trace.collectives], np.int64)[gpu.collective[mine]]
        collective_events.append(
            CollectiveEvents(
                f"{group}/{op}", True, gpu.start[mine], gpu.end[mine], sequences, communicator, size
            )
        )
    return collective_events


def communicator_of(said: Collective, world_size: int) -> str | None:
    """What tells a communicator from another of the same description; None where nothing does."""
    if said.name or said.members:
        return f"{said.name}:{said.members}"
    whole_world = said.group == _WORLD or 0 < said.group_size == world_size
    return "" if whole_world else None


def one_communicator(world_ranks: Sequence[int], size: int) -> bool:
    """Whether collective events of several processes, each with its rank in its world (-1: untold), can be of
    one communicator of that size (-1: untold).

    Every vLLM engine has a world of its own, and in each the ranks and the names of groups begin anew:
    then a rank occurs twice, or more processes take part than the communicator has.
    """
    ranks = [rank for rank in world_ranks if rank >= 0]
    return len(set(ranks)) == len(ranks) and not 0 < size < len(world_ranks)


def _host(trace: Trace) -> list[CollectiveEvents]:
    """Outermost host collectives by name. Operators are taken only where no range names the collective."""
    chosen = codes_where(
        trace.names, lambda name: meets(name) and not any(w in name.lower() for w in _POINT_TO_POINT)
    )
    for table in (trace.ranges, trace.ops):
        rows = rows_named(table, chosen)
        if len(rows):
            collective_events = []
            for code in distinct(table.name[rows]).tolist():
                mine = rows[table.name[rows] == code]
                mine = mine[np.argsort(table.start[mine], kind="stable")]
                none = np.full(len(mine), -1, np.int64)
                collective_events.append(
                    CollectiveEvents(trace.names[code], False, table.start[mine], table.end[mine], none)
                )
            return collective_events
    return []
