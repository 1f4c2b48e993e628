"""How long `rlprof hang` takes for the dumps of a large job, and what they weigh.

One real gloo process fills PyTorch's flight recorder and dumps it, with stacks; each rank's dump is that
one, and the last collective of one rank is left out. The time is that of the command, its start and the
writing of its answer with it.
"""

from __future__ import annotations

import pickle
import sys
from pathlib import Path

from tests.bench.harness import Run, environment, spend

NEEDS = ("torch",)
QUICK = {"ranks": 16, "collectives": 50}
MOST_S, MOST_MIB = 10.0, 200.0
RANK = """
import sys
import torch
import torch.distributed as dist
import torch._C._distributed_c10d as c10d

folder, calls = sys.argv[1], int(sys.argv[2])
dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=0, world_size=1)
for _ in range(calls):
    dist.all_reduce(torch.ones(4))
open(f"{folder}/one", "wb").write(c10d._dump_fr_trace())
"""


def write_dumps(folder: Path, ranks: int, collectives: int, missing: int) -> None:
    """The dumps of a job in which all ranks but one wait in its last collective."""
    env = environment({"TORCH_FR_BUFFER_SIZE": str(collectives), "GLOO_SOCKET_IFNAME": "lo"})
    spend([sys.executable, "-c", RANK, folder, str(collectives)], env)
    dump = pickle.loads((folder / "one").read_bytes())
    dump["pg_config"] = {"0": {"name": "0", "desc": "default_pg", "ranks": str([*range(ranks)])}}
    for entry in dump["entries"]:
        entry["process_group"] = ("0", "default_pg")
        entry["profiling_name"] = entry["profiling_name"].replace("gloo:", "nccl:")
        entry["state"] = "completed"
    last = dump["entries"][-1]
    behind = pickle.dumps({**dump, "entries": dump["entries"][:-1]}, protocol=2)
    last["state"], last["retired"] = "started", False
    waits = pickle.dumps(dump, protocol=2)
    (folder / "dumps").mkdir()
    for rank in range(ranks):
        (folder / f"dumps/nccl_trace_rank_{rank}").write_bytes(behind if rank == missing else waits)


def bench(run: Run, *, ranks: int = 512, collectives: int = 2000) -> None:
    missing = ranks // 7
    write_dumps(run.folder, ranks, collectives, missing)
    dumps = run.folder / "dumps"
    size_mib = sum(path.stat().st_size for path in dumps.iterdir()) / (1 << 20)
    cost = spend([sys.executable, "-m", "rlprof_ops", "hang", dumps])
    verdict = next(iter(cost.output.splitlines()), "")
    run.say(f"{ranks} ranks with {collectives} collectives each: {cost}")
    run.expect(verdict.startswith(f"Rank {missing} is missing: "), verdict)
    run.limit("dumps", size_mib, MOST_MIB, "MiB")
    run.limit("CPU time", cost.cpu_s, MOST_S, "s")
