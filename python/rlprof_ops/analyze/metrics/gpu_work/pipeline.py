"""Bubbles of a pipeline-parallel model: how long each stage's GPU can but wait for another stage.

A pipeline of p stages that takes m microbatches through forward and backward and then flushes leaves each
stage idle for (p - 1)/(m + p - 1) of the time (Narayanan et al., 2021, arXiv 2104.04473, section 2.2). What
is measured here is the same time: what of a phase a GPU runs nothing, or nothing but the transfers between
stages, in which it waits for its neighbour. Which transfers these are is told by the description of their
process group, as Megatron (`PIPELINE_MODEL_PARALLEL_GROUP`) and torch's device mesh (`mesh_pp`) give it.
"""

from __future__ import annotations

import re
from collections import Counter

import numpy as np
from msgspec import Struct, field

from rlprof_ops.analyze.columns import Trace, distinct, take
from rlprof_ops.analyze.metrics.gpu_time import gpu_unions
from rlprof_ops.analyze.metrics.intervals import union
from rlprof_ops.analyze.metrics.phases import Segment

UNTOLD = -1
_PIPELINE = re.compile(r"pipeline|(?<![a-z])pp(?![a-z])", re.IGNORECASE)


class PipelineTime(Struct, frozen=True):
    """All of one phase of one trace, over its steps and GPUs. `waiting_ns`: nothing ran but transfers between
    stages, `waits` has it by step; `idle_ns`: nothing at all. `stage` is the rank's place in its pipeline,
    `UNTOLD` where `members` (their ranks) are.
    """

    phase: str
    stage: int
    stages: int
    steps: int
    window_ns: int
    compute_ns: int
    waiting_ns: int
    idle_ns: int
    members: str = ""
    waits: dict[int, int] = field(default_factory=dict)


def is_pipeline(group: str) -> bool:
    """Whether a process group of that description links the stages of a pipeline."""
    return _PIPELINE.search(group) is not None


def pipeline_times(trace: Trace, segments: tuple[Segment, ...]) -> tuple[PipelineTime, ...]:
    """Every phase in which stages sent to each other."""
    said = trace.collectives
    codes = [code for code, each in enumerate(said) if is_pipeline(each.group) and each.group_size != 1]
    if not codes or not segments:
        return ()
    stage, stages, members = _place(trace, codes)
    start = np.array([segment.start for segment in segments], np.int64)
    end = np.array([segment.end for segment in segments], np.int64)
    transfers = np.isin(trace.gpu.collective, codes)
    sums = np.zeros((len(segments), 5), np.int64)  # window, compute, waiting, idle, transfers
    for device in distinct(trace.gpu.device[transfers]).tolist():
        here = trace.gpu.device == device
        gpu, between = take(trace.gpu, here), transfers[here]
        unions = gpu_unions(gpu, trace.names)
        sent = union(gpu.start[between], gpu.end[between]).within(start, end)
        rest = union(gpu.start[~between], gpu.end[~between]).within(start, end)
        busy, compute = unions.busy.within(start, end), unions.compute.within(start, end)
        sums += np.stack((end - start, compute, busy - rest, end - start - busy, sent), axis=1)
    found = []
    for phase in dict.fromkeys(segment.phase for segment in segments):
        mine = np.array([segment.phase == phase for segment in segments])
        window_ns, compute_ns, waiting_ns, idle_ns, sent_ns = sums[mine].sum(axis=0).tolist()
        if sent_ns:
            waits: Counter[int] = Counter()
            for segment, waited in zip(segments, sums[:, 2].tolist(), strict=True):
                if segment.phase == phase:
                    waits[segment.step] += waited
            times = (len(waits), window_ns, compute_ns, waiting_ns, idle_ns)
            found.append(PipelineTime(phase, stage, stages, *times, members, dict(waits)))
    return tuple(found)


def _place(trace: Trace, codes: list[int]) -> tuple[int, int, str]:
    """The rank's stage, how many there are, and the ranks of its pipeline, where the largest of its groups
    tells them.
    """
    largest = max((trace.collectives[code] for code in codes), key=lambda each: each.group_size)
    members = [part.strip() for part in largest.members.split(",")]
    rank = str(trace.origin.rank)
    if rank in members and len(members) == largest.group_size:
        return members.index(rank), len(members), largest.members
    return UNTOLD, largest.group_size, ""
