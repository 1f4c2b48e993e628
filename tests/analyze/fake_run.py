"""A run folder of simulated ranks whose every number is known: roles, steps, phases, kernels, one
straggler if wanted.
"""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

from tests.analyze.shared import kernel, launch, mark, write_trace, x

BASE_NS = 1_790_857_026_000_000_000
STEP_US = 100_000.0
# role -> (phase, start, length) in µs of a step
PLAN = {
    "generation_worker": [("generation", 1_000, 40_000), ("weight_sync", 92_000, 6_000)],
    "policy_worker": [
        ("ref_logprob", 42_000, 8_000),
        ("train", 52_000, 38_000),
        ("weight_sync", 91_000, 5_000),
    ],
}
SLOW_US = 6_000.0


def make_run(
    folder: Path, ranks: int = 2, generation_ranks: int = 1, steps: tuple[int, ...] = (3, 4, 5), kernels: int = 20,
    slow_rank: int | None = None, offsets_ns: dict[str, int] | None = None, hosts: int = 2, seed: int = 0,
    slow_node: str | None = None, tell_world: bool = False, tell_gpus: bool = True,
) -> Path:  # fmt: skip
    """Writes the torch traces of `ranks` policy and `generation_ranks` generation workers, spread over
    `hosts` nodes.

    The slow rank computes `SLOW_US` longer in train and waits the less in its collectives, as it is in life.
    `offsets_ns`: host -> what its clock is ahead by. `slow_node`: all ranks on it are
    slow. `tell_world`: the traces say how many ranks there are. `tell_gpus`: and which GPU each one used.
    """
    for worker, count in (("generation_worker", generation_ranks), ("policy_worker", ranks)):
        for rank in range(count):
            host = f"n{rank % hosts}"
            world = {"distributedInfo": {"backend": "nccl", "rank": rank, "world_size": count}}
            gpu = {"rlprof_gpus": {"0": f"{worker} {rank}"}} if tell_gpus else {}
            rng = random.Random(f"{seed} {worker} {rank}")
            slow = slow_rank if slow_node is None else rank if host == slow_node else None
            events = _rank(worker, rank, steps, kernels, slow, rng)
            for event in events:  # Kineto writes microseconds with three digits
                event["ts"], event["dur"] = round(event["ts"], 3), round(event["dur"], 3)
            name = f"{worker}_rank{rank}_step{steps[0]}-{steps[-1]}_{host}_{1000 + rank}.pt.trace.json.gz"
            base = BASE_NS + (offsets_ns or {}).get(host, 0)
            write_trace(
                folder / "profiles" / "torch" / worker / f"rank{rank}" / name,
                events,
                None,
                base,
                host_name=host,
                deviceProperties=[{"id": 0, "name": "NVIDIA H100"}],
                **gpu,
                **(world if tell_world else {}),
            )
    (folder / "run.json").write_text(
        json.dumps(
            {
                "schema": 1,
                "job": "4711",
                "job_name": "fake <b>run</b>",
                "nodes": [f"n{h}" for h in range(hosts)],
                "request": {"captures": []},
            }
        )
    )
    return folder


def _rank(
    worker: str, rank: int, steps: tuple[int, ...], kernels: int, slow_rank: int | None, rng: random.Random
) -> list[dict[str, Any]]:
    events: list[dict[str, Any]] = []
    number = 0
    for index, step in enumerate(steps):
        begin = 1_000_000.0 + index * STEP_US
        events.append(mark(f"step {step}", begin, STEP_US - 500))
        for phase, start, length in PLAN[worker]:
            events.append(mark(phase, begin + start, length))
            events.append(x("cpu_op", f"aten::{phase}_op", begin + start + 10, 50.0))
            if phase not in ("generation", "train"):
                continue
            slow = SLOW_US if rank == slow_rank and phase == "train" else 0.0
            busy = length * 0.6 + slow
            each = busy / kernels
            for i in range(kernels):
                number += 1
                events.append(launch(begin + start + 20 + i * 3, number))
                events.append(
                    kernel(
                        f"{phase}_kernel_{i % 3}",
                        begin + start + 100 + i * each,
                        each - 1 - 0.3 * rng.random(),
                        correlation=number,
                    )
                )
            if phase == "train":
                number += 1
                arrival = begin + start + 120 + busy + 5 * rng.random()
                events.append(launch(begin + start + 200, number))
                end = begin + start + length - 500  # all ranks leave together
                events.append(
                    kernel(
                        "ncclDevKernel_AllReduce_Sum_bf16",
                        arrival,
                        end - arrival,
                        20,
                        0,
                        number,
                        **{
                            "Collective name": "allreduce",
                            "dtype": "BFloat16",
                            "In msg nelems": 1_000_000,
                            "Out msg nelems": 1_000_000,
                            "Group size": 8,
                            "Process Group Description": "default_pg",
                        },
                    )
                )
    return events
