"""The job of a study of stragglers (Lin et al., "Understanding Stragglers in Large Model Training Using
What-if Analysis", OSDI 2025): its published operations as torch traces, and what its own simulator says.

The archive holds one row an operation of 16 ranks (4 stages, 4 pipelines; of each four tensor-parallel ranks
one) in 44 steps. Rank 0 was slowed down on purpose.
"""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path
from typing import Any, NamedTuple

from tests.analyze.shared import kernel, launch, mark, write_trace
from tests.upstream import tree

BASE_NS = 1_700_000_000_000_000_000
APART_US = 100e6  # the rows count from the begin of their step; from one step to the next, longer than a step
GROUPS = {
    "params-all-gather": ("allgather", "DATA_PARALLEL_GROUP"),
    "grads-reduce-scatter": ("reduce_scatter", "DATA_PARALLEL_GROUP"),
    "layernorm-grads-all-reduce": ("allreduce", "TENSOR_MODEL_PARALLEL_GROUP"),
    "embedding-grads-all-reduce": ("allreduce", "EMBEDDING_GROUP"),
    "optimizer-clip-main-grad": ("allreduce", "MODEL_PARALLEL_GROUP"),
}
KINDS = ("forward-compute", "backward-compute", "optimizer")
WORLD, STAGES, PIPELINES, TENSOR = 64, 4, 4, 4


class Operation(NamedTuple):
    """Times in µs from the begin of the step."""

    kind: str
    start: float
    end: float


def missing() -> str:
    """Why the study cannot be read; empty when it can."""
    try:
        import pyarrow.parquet  # noqa: F401

        tree("straggler_analysis")
    except (ImportError, ValueError) as error:
        return f"no straggler_analysis archive, or no pyarrow to read it ({error}); set RLPROF_UPSTREAM"
    return ""


def said(name: str) -> Any:
    """What the study's own programs found: `result`, `mw` (what mending the slow worker brings)."""
    return json.loads((tree("straggler_analysis") / "data" / f"{name}-AR.json").read_text())


def operations() -> dict[int, dict[int, list[Operation]]]:
    """Rank -> step -> its operations in order of time."""
    import pyarrow.parquet as parquet

    table = parquet.read_table(tree("straggler_analysis") / "data" / "trace-AR.parquet").to_pydict()
    found: dict[int, dict[int, list[Operation]]] = defaultdict(lambda: defaultdict(list))
    columns = (table[name] for name in ("rank", "step", "optype", "start_ts", "duration"))
    for rank, step, kind, start, length in zip(*columns, strict=True):
        found[rank][step].append(Operation(kind, 1e6 * start, 1e6 * (start + length)))
    for steps in found.values():
        for mine in steps.values():
            mine.sort(key=lambda operation: (operation.start, operation.end, operation.kind))
    return found


def write_study(folder: Path, most_steps: int | None = None, by_kind: bool = False) -> Path:
    """Reports of all ranks, of the first `most_steps` steps that the study has. A step is one phase, train,
    or has a phase of its own for each kind of computing.
    """
    every = operations()
    numbers = sorted(next(iter(every.values())))[:most_steps]
    length = {n: max(o.end for steps in every.values() for o in steps[n]) for n in numbers}
    for rank, steps in every.items():
        events: list[dict[str, Any]] = []
        for place, number in enumerate(numbers):
            at = APART_US * place
            events.append(mark(f"step {number}", at, length[number]))
            events += [] if by_kind else [mark("train", at, length[number])]
            taken: set[tuple[float, float]] = set()
            for kind, start, end in steps[number]:
                if end <= start or (start, end) in taken:  # a send and a receive of one batch are one kernel
                    continue
                taken.add((start, end))
                correlation = len(events)
                events.append(launch(at + start, correlation, dur=0.5))
                says = {} if kind in KINDS or kind == "gc" else _collective(kind, rank)
                if by_kind and kind in KINDS:
                    events.append(mark(kind, at + start, end - start))
                name = f"ncclDevKernel_{says['Collective name']}" if says else kind
                stream = 20 if says else 7
                events.append(kernel(name, at + start, end - start, stream, 0, correlation, **says))
        window = f"step{numbers[0]}-{numbers[-1]}_n{rank // 8}_{rank + 9}"
        name = f"policy_worker_rank{rank}_{window}.pt.trace.json.gz"
        write_trace(
            folder / "profiles/torch/policy_worker" / f"rank{rank}" / name,
            events,
            None,
            BASE_NS,
            host_name=f"n{rank // 8}",
            distributedInfo={"backend": "nccl", "rank": rank, "world_size": WORLD},
        )
    return folder


def _collective(kind: str, rank: int) -> dict[str, Any]:
    """What torch writes on a kernel of NCCL."""
    op, group = GROUPS.get(
        kind, ("recv" if kind.endswith("recv") else "send", "PIPELINE_MODEL_PARALLEL_GROUP")
    )
    a_stage = WORLD // STAGES
    stage, inside = divmod(rank, a_stage)
    members = {
        "DATA_PARALLEL_GROUP": [stage * a_stage + inside % TENSOR + TENSOR * i for i in range(PIPELINES)],
        "TENSOR_MODEL_PARALLEL_GROUP": [rank - rank % TENSOR + i for i in range(TENSOR)],
        "EMBEDDING_GROUP": [inside, inside + (STAGES - 1) * a_stage],
        "PIPELINE_MODEL_PARALLEL_GROUP": [inside + a_stage * i for i in range(STAGES)],
        "MODEL_PARALLEL_GROUP": list(range(WORLD)),
    }[group]
    return {
        "Collective name": op,
        "dtype": "BFloat16",
        "In msg nelems": 1000,
        "Out msg nelems": 1000,
        "Group size": len(members),
        "Process Group Name": f"{group}_{members[0]}",
        "Process Group Description": group,
        "Process Group Ranks": str(members),
    }
