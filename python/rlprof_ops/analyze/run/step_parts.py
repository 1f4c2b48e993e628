"""A step that several reports of one process hold in parts, as where each phase was captured alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from msgspec.structs import replace

from rlprof_ops.analyze.metrics.gpu_time import sum_gpu, sum_idle
from rlprof_ops.analyze.metrics.intervals import merged
from rlprof_ops.analyze.run.process_summary import PhaseTime

if TYPE_CHECKING:
    from rlprof_ops.analyze.run.merge import RankStep


def whole_step(rows: Sequence[RankStep]) -> RankStep:
    """Merge the rows of one rank's step into one, the most complete row first.

    Rows of the same time are of two profilers, and the first of them counts; those of other times are parts
    of the step, and are put together. Between the parts nobody recorded.
    """
    parts = [rows[0]]
    for row in rows[1:]:
        apart = all(row.start >= part.end or row.end <= part.start for part in parts)
        if apart and row.marked == rows[0].marked and row.count == rows[0].count:
            parts.append(row)
    if len(parts) == 1:
        return rows[0]
    parts.sort(key=lambda row: row.start)
    phases: dict[str, PhaseTime] = {}
    for part in parts:
        for phase in part.phases:
            known = phases.get(phase.phase)
            phases[phase.phase] = phase if known is None else _joined(known, phase)
    return replace(
        rows[0],
        start=parts[0].start,
        end=max(part.end for part in parts),
        phases=tuple(phases.values()),
        drawn=tuple(segment for part in parts for segment in part.drawn),
        gpu=sum_gpu([part.gpu for part in parts if part.gpu]),
        idle=sum_idle([part.idle for part in parts if part.idle]),
        collectives_seen=any(part.collectives_seen for part in parts),
        captured=merged(*(part.recorded for part in parts)),
        devices=max(part.devices for part in parts),
    )


def _joined(one: PhaseTime, two: PhaseTime) -> PhaseTime:
    when = merged(one.when, two.when)
    return replace(
        one,
        duration_ns=when.length,
        stretches=one.stretches + two.stretches,
        communication_ns=one.communication_ns + two.communication_ns,
        pipeline_ns=one.pipeline_ns + two.pipeline_ns,
        gpu=sum_gpu([times for times in (one.gpu, two.gpu) if times]),
        idle=sum_idle([split for split in (one.idle, two.idle) if split]),
        when=when,
    )
