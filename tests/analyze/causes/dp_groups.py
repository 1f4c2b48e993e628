"""Traces of a training whose ranks reduce in data-parallel groups, with known links and lateness: rank r is
in group r % groups, and all ranks meet at the end of a step.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

from tests.analyze.shared import kernel, launch, mark, write_trace

BASE_NS = 1_790_857_026_000_000_000
MESSAGE = 100_000_000  # bytes of one reduce-scatter
COMPUTE_US, STEP_US = 60_000.0, 500_000.0


def write_groups(
    folder: Path,
    seed: int,
    *,
    groups: int = 4,
    members: int = 4,
    steps: int = 4,
    calls: int = 2,
    gb_per_s: float = 33.0,
    slow: dict[int, float] | None = None,
    late_us: dict[int, float] | None = None,
) -> Path:
    """`slow`: the bus bandwidth of some groups, by number; `late_us`: how much longer some ranks compute."""
    rng, world = random.Random(seed), groups * members
    events: dict[int, list[dict[str, Any]]] = {rank: [] for rank in range(world)}

    def talk(rank: int, op: str, begin: float, end: float, nbytes: int, group: str, ranks: list[int]) -> None:
        mine = events[rank]
        says = {
            "Collective name": op, "dtype": "BFloat16", "In msg nelems": nbytes // 2,
            "Out msg nelems": nbytes // 2, "Group size": len(ranks),
            "Process Group Name": f"{group}{ranks[0]}",
            "Process Group Description": group, "Process Group Ranks": str(ranks),
        }  # fmt: skip
        mine.append(launch(begin - 5, len(mine)))
        mine.append(kernel(f"ncclDevKernel_{op}", begin, end - begin, 20, 0, len(mine) - 1, **says))

    for step in range(1, steps + 1):
        begin = STEP_US * step
        at = dict.fromkeys(range(world), begin + 100)
        for _ in range(calls):
            for rank, mine in events.items():
                length = COMPUTE_US * rng.gauss(1, 0.02) + (late_us or {}).get(rank, 0.0)
                mine.append(launch(at[rank], len(mine)))
                mine.append(kernel("gemm", at[rank] + 5, length, 7, 0, len(mine) - 1))
                at[rank] += 5 + length + rng.uniform(5, 20)
            for group in range(groups):
                ranks = list(range(group, world, groups))
                rate = (slow or {}).get(group, gb_per_s) * rng.gauss(1, 0.02)
                over = max(at[r] for r in ranks) + MESSAGE * (members - 1) / members / rate / 1e3
                for rank in ranks:
                    talk(rank, "reduce_scatter", at[rank], over, MESSAGE, "DATA_PARALLEL_GROUP", ranks)
                    at[rank] = over + rng.uniform(5, 20)
        over = max(at.values()) + 50
        for rank in events:
            talk(rank, "allreduce", at[rank], over, 8, "default_pg", list(range(world)))
            events[rank] += [
                mark(f"step {step}", begin, over + 50 - begin),
                mark("train", begin + 50, over - begin),
            ]
    for rank, mine in events.items():
        host = f"n{rank // 8}"
        write_trace(
            folder / "profiles/torch/policy" / f"rank{rank}"
            / f"policy_rank{rank}_step1-{steps}_{host}_{1000 + rank}.pt.trace.json.gz",
            mine, None, BASE_NS, host_name=host,
            distributedInfo={"backend": "nccl", "rank": rank, "world_size": world},
        )  # fmt: skip
    return folder
