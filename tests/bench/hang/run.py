"""How long `rlprof hang` takes for the dumps of a large job, and what they weigh.

    python tests/bench/hang/run.py [--ranks 512] [--collectives 2000]

One real gloo process fills PyTorch's flight recorder and dumps it, with stacks; each rank's dump is that one,
and the last collective of one rank is left out. The time is that of the command, its start
and the writing of its answer with it. The limits are 10 s of CPU time and 200 MiB.
"""

from __future__ import annotations

import argparse
import os
import pickle
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "python"))
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
    env = {**os.environ, "TORCH_FR_BUFFER_SIZE": str(collectives), "GLOO_SOCKET_IFNAME": "lo"}
    words = [sys.executable, "-c", RANK, str(folder), str(collectives)]
    subprocess.run(words, env=env, check=True, timeout=300)
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


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--ranks", type=int, default=512)
    parser.add_argument("--collectives", type=int, default=2000)
    arguments = parser.parse_args()
    missing = arguments.ranks // 7
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_dumps(folder, arguments.ranks, arguments.collectives, missing)
        size_mib = sum(path.stat().st_size for path in (folder / "dumps").iterdir()) / (1 << 20)
        env = {**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[3] / "python")}
        began, before = time.monotonic(), resource.getrusage(resource.RUSAGE_CHILDREN)
        words = [sys.executable, "-m", "rlprof_ops", "hang", str(folder / "dumps")]
        done = subprocess.run(words, env=env, capture_output=True, text=True, timeout=600, check=False)
        seconds, after = time.monotonic() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    verdict = next(iter(done.stdout.splitlines()), done.stderr)
    print(verdict)
    print(f"{arguments.ranks} ranks with {arguments.collectives} collectives each:")
    print(f"  dumps      {size_mib:5.0f} MiB, at most {MOST_MIB:.0f}")
    print(f"  CPU time   {cpu_s:5.1f} s, at most {MOST_S:.0f}; {seconds:.1f} s in all on this machine now")
    right = verdict.startswith(f"Rank {missing} is missing: ")
    return 0 if right and size_mib <= MOST_MIB and cpu_s <= MOST_S else 1


if __name__ == "__main__":
    sys.exit(main())
