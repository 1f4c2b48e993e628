"""Traces of a loop of generation and training in which hosts pause at known moments: the GPU stands idle, and
the other ranks wait in the next collective.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.analyze.shared import kernel, launch, mark, write_trace, x

BASE_NS = 1_790_857_026_000_000_000
MS = 1000.0  # µs
MICRO = 3  # batches of a training step


@dataclass
class HostFaults:
    """`pauses`: (rank, step) -> ms before the first kernel of the second batch; `why`: what the host is in
    meanwhile, as (category, name), "" for nothing that a trace shows. `gaps_ms`: between any two kernels of
    some ranks. `slower`: factors of some ranks' kernels.
    """

    seed: int
    ranks: int = 4
    steps: int = 6
    noise: float = 0.03
    why: tuple[str, str] = ("", "")
    pauses: Mapping[tuple[int, int], float] = field(default_factory=dict)
    gaps_ms: Mapping[int, float] = field(default_factory=dict)
    slower: Mapping[int, float] = field(default_factory=dict)
    kernel_ms: float = 12.0
    kernels: int = 4  # of a batch

    def write(self, folder: Path) -> float:
        """Writes the reports of all ranks; the mean step, ms."""
        rng = random.Random(self.seed)
        events: dict[tuple[str, int], list[dict[str, Any]]] = {
            **{("rollout", rank): [] for rank in range(2)},
            **{("policy", rank): [] for rank in range(self.ranks)},
        }
        now = 1000.0

        def run(
            who: tuple[str, int], name: str, asked: float, begin: float, length: float, **says: Any
        ) -> float:
            mine = events[who]
            mine.append(launch(asked, len(mine) + 1))
            mine.append(kernel(name, begin, length, 20 if says else 7, 0, len(mine), **says))
            return begin + length

        for step in range(1, self.steps + 1):
            begun, over = now, now
            for rank in range(2):
                end = run(("rollout", rank), "decode", now + 2, now + 8, 250 * MS * rng.gauss(1, self.noise))
                events["rollout", rank].append(mark("generation", now, end + 10 - now))
                over = max(over, end + 20)
            at = dict.fromkeys(range(self.ranks), over + 10)
            starts = dict(at)
            for batch in range(MICRO):
                for rank in at:
                    who, host = ("policy", rank), at[rank] + 2
                    paused = self.pauses.get((rank, step), 0.0) if batch == 1 else 0.0
                    if paused and self.why[1]:
                        events[who].append(x(self.why[0], self.why[1], host, paused * MS - 20))
                    host += paused * MS
                    end = host
                    for _ in range(self.kernels):
                        gap = self.gaps_ms.get(rank, 0.0) * MS
                        length = self.kernel_ms * MS * self.slower.get(rank, 1.0) * rng.gauss(1, self.noise)
                        asked = max(end, host) + gap if gap else host
                        end = run(who, "gemm", asked, max(end, asked) + 5, length)
                        host += min(10.0, self.kernel_ms * MS / 2)
                    at[rank] = end + 5
                met = max(at.values()) + 1 * MS
                for rank in at:
                    says = {
                        "Collective name": "allreduce", "dtype": "BFloat16", "In msg nelems": 1_000_000,
                        "Out msg nelems": 1_000_000, "Group size": self.ranks, "Process Group Name": "0",
                        "Process Group Description": "default_pg",
                    }  # fmt: skip
                    run(
                        ("policy", rank),
                        "ncclDevKernel_AllReduce",
                        at[rank] - 3,
                        at[rank],
                        met - at[rank],
                        **says,
                    )
                    at[rank] = met + rng.uniform(2, 8)
            now = round(max(at.values())) + 500.0
            for rank in at:
                events["policy", rank].append(mark("train", starts[rank], at[rank] - starts[rank]))
            for mine in events.values():
                mine.append(mark(f"step {step}", begun, now - begun - 1))
        for (worker, rank), mine in events.items():
            pid = 1000 + rank + 100 * (worker == "policy")
            write_trace(
                folder / "profiles/torch" / worker / f"rank{rank}"
                / f"{worker}_rank{rank}_step1-{self.steps}_n0_{pid}.pt.trace.json.gz",
                mine, None, BASE_NS, host_name="n0",
                deviceProperties=[{"id": 0, "name": "GPU"}],
                rlprof_gpus={"0": f"GPU-{worker}-{rank}"},
                distributedInfo={
                    "backend": "nccl", "rank": rank, "world_size": {"policy": self.ranks}.get(worker, 2),
                },
            )  # fmt: skip
        return (now - 1000.0) / self.steps / MS
