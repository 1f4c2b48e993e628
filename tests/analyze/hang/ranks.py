"""Real ranks that hang, on gloo: `python -m tests.analyze.hang.ranks FOLDER SCENARIO…`.

Each rank of a scenario writes `FOLDER/<scenario>/nccl_trace_rank_<rank>`, as torch does at a timeout, and the
same as JSON into `FOLDER/<scenario>.json/`, while it hangs.
"""

from __future__ import annotations

import contextlib
import datetime
import os
import signal
import sys
import threading
import time

import torch
import torch._C._distributed_c10d as c10d
import torch.distributed as dist
import torch.distributed.tensor
from tests.recorder import hung_ranks

SIZES = {
    "sleeps": 8,
    "leaves_early": 4,
    "calls_another": 3,
    "shape": 3,
    "dtype": 3,
    "two_groups": 4,
    "stopped": 4,
    "killed": 4,
}
WITHOUT_DUMP = {"leaves_no_dump": 1, "stopped": 3, "killed": 2}
HELD = ("lock", "file_lock", "dead_mount")  # rank 1, by something of its machine
SCENARIOS = (
    "sleeps", "leaves_early", "leaves_no_dump", "calls_another", "shape", "dtype", "opposite_order",
    "opposite_at_once", "two_groups", "stopped", "killed", *HELD, "fine",
)  # fmt: skip
_DUMP_S = 12.0  # the ranks of all scenarios start at once, and then stand


def expected_files() -> set[str]:
    files = {f"{name}/nccl_trace_rank_{rank}" for name in SCENARIOS for rank in range(SIZES.get(name, 2))}
    return files - {f"{name}/nccl_trace_rank_{rank}" for name, rank in WITHOUT_DUMP.items()}


def steps(count: int = 3) -> None:
    for _ in range(count):
        dist.all_reduce(torch.ones(4, 5))


def stay() -> None:
    time.sleep(600)


def sleeps(rank: int) -> None:
    steps()
    if rank == 1:
        stay()
    steps(1)


def leaves_early(rank: int) -> None:
    for step in range(5):
        if rank == 2 and step == 3:
            break
        dist.all_reduce(torch.ones(4, 5))
    stay()


def leaves_no_dump(rank: int) -> None:
    sleeps(rank)


def calls_another(rank: int) -> None:
    steps()
    if rank == 1:
        dist.barrier()
    else:
        dist.all_reduce(torch.ones(4, 5))
    stay()


def shape(rank: int) -> None:
    """The source is late; gloo would end a rank that meets another shape."""
    steps()
    if rank == 2:
        stay()
    dist.broadcast(torch.ones(4, 6 if rank == 1 else 5), src=2)


def dtype(rank: int) -> None:
    """As `shape`."""
    steps()
    if rank == 2:
        stay()
    dist.broadcast(torch.ones(4, dtype=torch.float64 if rank == 1 else torch.float32), src=2)


def opposite_order(rank: int) -> None:
    groups = [dist.new_group([0, 1], group_desc=name) for name in ("tp", "dp")]
    for group in groups:
        dist.all_reduce(torch.ones(2), group=group)
    for group in groups if rank == 0 else groups[::-1]:
        dist.all_reduce(torch.ones(3), group=group)


def opposite_at_once(rank: int) -> None:
    groups = [dist.new_group([0, 1], group_desc=name) for name in ("tp", "dp")]
    for group in groups if rank == 0 else groups[::-1]:
        dist.all_reduce(torch.ones(3), group=group)


def two_groups(rank: int) -> None:
    """Rank 1 stays away from its pair; its pair therefore from everybody."""
    pairs = [dist.new_group([0, 1], group_desc="pair"), dist.new_group([2, 3], group_desc="pair")]
    steps()
    dist.all_reduce(torch.ones(2), group=pairs[rank // 2])
    if rank == 1:
        stay()
    dist.all_reduce(torch.ones(2), group=pairs[rank // 2])
    steps(1)


def stopped(rank: int) -> None:
    steps()
    if rank == 3:
        os.kill(os.getpid(), signal.SIGSTOP)
    steps(1)


def killed(rank: int) -> None:
    """gloo ends the collective of the others, where NCCL would wait."""
    steps()
    if rank == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    with contextlib.suppress(RuntimeError):
        steps(1)
    stay()


def fine(rank: int) -> None:
    steps()
    stay()


def _dump(folder: str, scenario: str, rank: int) -> None:
    time.sleep(_DUMP_S)
    if WITHOUT_DUMP.get(scenario) == rank:
        return
    _write(f"{folder}/{scenario}.json/rank_{rank}.json", c10d._dump_fr_trace_json())
    _write(f"{folder}/{scenario}/nccl_trace_rank_{rank}", c10d._dump_fr_trace())
    os.write(1, f"{scenario} {rank}\n".encode())


def _write(path: str, raw: bytes) -> None:
    with open(path + ".part", "wb") as file:
        file.write(raw)
    os.rename(path + ".part", path)


def _rank(folder: str, scenario: str, rank: int, size: int) -> None:
    store = dist.FileStore(f"{folder}/{scenario}.store", size)
    timeout = datetime.timedelta(seconds=300)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=size, timeout=timeout)
    threading.Thread(target=_dump, args=(folder, scenario, rank), daemon=True).start()
    if scenario in HELD:
        files = f"{folder}/{scenario}.files"
        os.makedirs(files, exist_ok=True)
        getattr(hung_ranks, scenario)(rank, files)
    globals()[scenario](rank)


def main(folder: str, scenarios: list[str]) -> None:
    """Whoever starts this ends the process group when all dumps are there. A process's first dump with stacks
    imports torch.distributed.tensor, 3 s of CPU time: here it is there before the ranks are.
    """
    for scenario in scenarios:
        os.makedirs(f"{folder}/{scenario}")
        os.makedirs(f"{folder}/{scenario}.json")
        size = SIZES.get(scenario, 2)
        for rank in range(size):
            if not os.fork():
                try:
                    _rank(folder, scenario, rank, size)
                finally:
                    os._exit(1)
    stay()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
