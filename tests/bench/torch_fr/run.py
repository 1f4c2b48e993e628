"""What PyTorch's flight recorder costs two gloo ranks in a small all_reduce, in pairs: as a job sets it, and
off.

    python tests/bench/torch_fr/run.py [--pairs 5] [--calls 20000]

Time of the wall and of the CPU for a call of rank 0, memory of its process, and the seconds of a dump. The
two sides of a pair run one after the other, each second pair in the other order.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "python"))
OFF = {"RLPROF_TORCH_FR": "0", "TORCH_FR_BUFFER_SIZE": "0"}
ON: dict[str, str] = {}
RANK = """
import json, resource, sys, time
import torch
import torch.distributed as dist
import torch._C._distributed_c10d as c10d

store, rank, calls = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
tensor = torch.ones(4)

def run(count):
    for _ in range(count):
        dist.all_reduce(tensor)

run(2500)
began, cpu = time.perf_counter(), time.process_time()
run(calls)
found = {
    "wall_us": (time.perf_counter() - began) / calls * 1e6,
    "cpu_us": (time.process_time() - cpu) / calls * 1e6,
    "rss_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
}
for name in ("first_dump_s", "next_dump_s"):
    began = time.perf_counter()
    found["dump_kib"] = len(c10d._dump_fr_trace()) / 1024
    found[name] = time.perf_counter() - began
dist.barrier()
print(json.dumps(found))
"""


def measure(more: dict[str, str], calls: int) -> dict[str, float]:
    """What rank 0 says of one run."""
    from rlprof_ops.job.knobs import python_path

    with tempfile.TemporaryDirectory() as folder:
        own = {name: text for name, text in os.environ.items() if not name.startswith(("RLPROF_", "TORCH_"))}
        own |= {"RLPROF_NODE_DIR": folder, "PYTHONPATH": python_path(None), "OMP_NUM_THREADS": "1"}
        own |= {"GLOO_SOCKET_IFNAME": "lo", **more}
        ranks = [
            subprocess.Popen(
                [sys.executable, "-c", RANK, f"{folder}/store", str(rank), str(calls)],
                env=own,
                stdout=subprocess.PIPE,
            )
            for rank in range(2)
        ]
        said = [rank.communicate(timeout=600)[0] for rank in ranks]
    found: dict[str, float] = json.loads(said[0])
    return found


def main() -> int:
    arguments = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    arguments.add_argument("--pairs", type=int, default=5)
    arguments.add_argument("--calls", type=int, default=20_000)
    options = arguments.parse_args()
    on, off = [], []
    for pair in range(options.pairs):
        for side, more in ((on, ON), (off, OFF)) if pair % 2 else ((off, OFF), (on, ON)):
            side.append(measure(more, options.calls))
    print(f"{'a call, a process':20} {'off':>10} {'on':>10} {'on / off':>10}   of each pair")
    for name in ("cpu_us", "wall_us", "rss_mib"):
        without, with_it = (statistics.median(each[name] for each in side) for side in (off, on))
        each = " ".join(f"{one[name] / other[name]:.3f}" for one, other in zip(on, off, strict=True))
        print(f"{name:20} {without:10.1f} {with_it:10.1f} {with_it / without:10.3f}   {each}")
    for name in ("first_dump_s", "next_dump_s", "dump_kib"):
        print(f"{name:20} {'-':>10} {statistics.median(each[name] for each in on):10.3f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
