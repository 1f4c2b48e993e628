"""A pipeline-parallel training made by a simulation of its schedule, as a trace of each rank: whose bubbles
are known in closed form.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

from tests.analyze.shared import kernel, launch, mark, write_trace

BASE_NS = 1_790_857_026_000_000_000
GROUP = "PIPELINE_MODEL_PARALLEL_GROUP"
SLOW_US, MEETING_US = 600.0, 2.0
KERNELS = {"compute": "gemm", "wait": "ncclDevKernel_SendRecv", "meet": "ncclDevKernel_AllReduce_Sum_f32"}
Piece = tuple[str, float, float]  # "compute" or "wait", begin and end in µs


def one_forward_one_backward(computes_us: list[float], microbatches: int) -> list[list[Piece]]:
    """What each stage does from the first forward to the last backward of all; a stage's forward takes its
    `computes_us`, its backward twice that, and a transfer no time.

    Each stage does as many forwards first as there are stages behind it, then one backward after every
    forward (PipeDream-Flush; Megatron's `forward_backward_pipelining_without_interleaving`).
    """
    stages = len(computes_us)
    orders = []
    for stage in range(stages):
        ahead = min(stages - stage - 1, microbatches)
        order = [("F", number) for number in range(ahead)]
        for number in range(microbatches - ahead):
            order += [("F", ahead + number), ("B", number)]
        orders.append(order + [("B", number) for number in range(microbatches - ahead, microbatches)])

    @cache
    def times(stage: int, place: int) -> tuple[float, float, float]:
        """When a stage is free for its work number `place`, when that begins, and when it ends."""
        kind, number = orders[stage][place]
        free = times(stage, place - 1)[2] if place else 0.0
        other = stage - 1 if kind == "F" else stage + 1
        comes = 0.0
        if 0 <= other < stages:
            comes = times(other, orders[other].index((kind, number)))[2]
        begin = max(free, comes)
        return free, begin, begin + computes_us[stage] * (1 if kind == "F" else 2)

    found = []
    for stage in range(stages):
        pieces: list[Piece] = []
        for place in range(len(orders[stage])):
            free, begin, end = times(stage, place)
            pieces += [("wait", free, begin)] if begin > free else []
            pieces.append(("compute", begin, end))
        found.append(pieces)
    return found


def write_pipeline(
    folder: Path,
    computes_us: list[float],
    microbatches: int,
    group: str = GROUP,
    data_parallel: int = 1,
    steps: int = 1,
    slow_rank: int | None = None,
) -> float:
    """Reports of `steps` steps of all ranks, rank = stage * data_parallel + copy; the length of a train phase
    in µs. In the last `SLOW_US` of it the slow rank computes, and the others wait for it in a collective.
    """
    stages = len(computes_us)
    schedule = one_forward_one_backward(computes_us, microbatches)
    flushed = max(pieces[-1][2] for pieces in schedule)
    # whole ns, or a step begins before the one before it has ended
    whole = round(flushed + (0 if slow_rank is None else SLOW_US + MEETING_US), 3)
    for rank in range(stages * data_parallel):
        stage, copy = divmod(rank, data_parallel)
        says: dict[str, Any] = {
            "Collective name": "recv",
            "dtype": "BFloat16",
            "In msg nelems": 1000,
            "Out msg nelems": 1000,
            "Group size": stages,
            "Process Group Name": f"{40 + copy}",
            "Process Group Description": group,
            "Process Group Ranks": str([copy + data_parallel * other for other in range(stages)]),
        }
        world = stages * data_parallel
        everybody = says | {
            "Collective name": "allreduce",
            "Group size": world,
            "Process Group Name": "0",
            "Process Group Description": "default_pg",
            "Process Group Ranks": str(list(range(world))),
        }
        pieces = list(schedule[stage])
        if slow_rank is not None:
            arrives = whole - MEETING_US if rank == slow_rank else flushed
            pieces += [("compute", flushed, arrives)] if rank == slow_rank else []
            pieces.append(("meet", arrives, whole))
        events = []
        for step in range(steps):
            at = step * whole
            events += [mark(f"step {3 + step}", at, whole), mark("train", at, whole)]
            for number, (what, begin, end) in enumerate(pieces, 1 + step * len(pieces)):
                events.append(launch(at + begin, number, dur=0.5))
                name, more = KERNELS[what], {"wait": says, "meet": everybody}.get(what, {})
                stream = 7 if what == "compute" else 20
                events.append(kernel(name, at + begin, end - begin, stream, 0, number, **more))
        name = f"policy_worker_rank{rank}_step3-{2 + steps}_n1_{rank + 9}.pt.trace.json"
        write_trace(
            folder / "profiles/torch/policy_worker" / f"rank{rank}" / name,
            events,
            None,
            BASE_NS,
            host_name="n1",
            distributedInfo={"backend": "nccl", "rank": rank, "world_size": world},
        )
    return whole
