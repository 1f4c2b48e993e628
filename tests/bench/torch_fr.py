"""What PyTorch's flight recorder costs two gloo ranks in a small all_reduce: as a job sets it, and off.

Time of the wall and of the CPU for a call of rank 0, memory of its process, the seconds of a dump, and those
of the look at its 2000 calls once a minute: its CPU, and for how long another thread of the process stands.
--trl-pairs adds so many pairs of TRL's GRPOTrainer with two ranks: its own seconds of a step, the first left
out, and of the whole run, its start included, CPU time and peak memory of a process. The ratio of two runs
without it, one after the other, says how far that of steps can be trusted on this machine.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median

from tests.bench.harness import Run, by_turns, environment, ratio, spend
from tests.trainers import environments, runs

from rlprof_ops.job.knobs import python_path

NEEDS = ("torch",)
QUICK = {"pairs": 1, "calls": 100}
OFF = {"RLPROF_TORCH_FR": "0", "TORCH_FR_BUFFER_SIZE": "0"}
ON: dict[str, str] = {}
RANK = """
import json, os, resource, sys, threading, time
from pathlib import Path
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
from rlprof_ops.runtime.on_demand import arrivals
stands, over = [0.0], threading.Event()

def spin():
    last = time.perf_counter()
    while not over.is_set():
        now = time.perf_counter()
        stands[0], last = max(stands[0], now - last), now

def look():
    taken = arrivals.take(c10d, dist, "w", time.time_ns(), os.getpid())
    if taken is not None:
        arrivals.write(Path(f"{store}.arrivals"), taken)

look()
spinning = threading.Thread(target=spin)
spinning.start()
for name, does in (("stands_without_s", lambda: None), ("stands_s", look)):
    found[name] = []
    for _ in range(7):
        time.sleep(0.2)
        stands[0], began = 0.0, time.thread_time()
        does()
        cpu = time.thread_time() - began
        time.sleep(0.05)
        found[name].append(stands[0])
    found[name] = sorted(found[name])[3]
found["look_cpu_s"] = cpu
over.set()
spinning.join()
dist.barrier()
print(json.dumps(found))
"""


def measure(more: dict[str, str], calls: int) -> dict[str, float]:
    """What rank 0 says of one run."""
    with tempfile.TemporaryDirectory() as folder:
        own = {"RLPROF_NODE_DIR": folder, "PYTHONPATH": python_path(None), "OMP_NUM_THREADS": "1"}
        own |= {"GLOO_SOCKET_IFNAME": "lo", **more}
        ranks = [
            subprocess.Popen(
                [sys.executable, "-c", RANK, f"{folder}/store", str(rank), str(calls)],
                env=environment(own, without=("RLPROF_", "TORCH_")),
                stdout=subprocess.PIPE,
            )
            for rank in range(2)
        ]
        said = [rank.communicate(timeout=600)[0] for rank in ranks]
    found: dict[str, float] = json.loads(said[0])
    return found


@dataclass(frozen=True)
class Trained:
    """A run of TRL: the median step, CPU time of all processes, the largest one's memory."""

    step_ms: float
    cpu_s: float
    rss_mib: float


def trained(more: dict[str, str], steps: int) -> Trained:
    with tempfile.TemporaryDirectory() as folder:
        own = {"RLPROF_NODE_DIR": folder, "RLPROF_ON_DEMAND": "1", "PYTHONPATH": python_path(None), **more}
        one = runs.trainer_run("trl", work=Path(folder), steps=steps, env=own)
        place = one.argv.index(str(environments.HERE / "trl/grpo.py"))
        torchrun = ["-m", "torch.distributed.run", "--nproc-per-node=2", "--standalone"]
        argv = [*one.argv[:place], *torchrun, *one.argv[place:]]
        cost = spend(argv, one.environment() | {"GLOO_SOCKET_IFNAME": "lo"}, one.cwd)
    times = runs.step_times("trl", cost.output)
    later = [seconds * 1e3 for step, seconds in times.items() if step > 1]
    return Trained(median(later), cost.cpu_s, cost.peak_gib * 1024)


def bench(run: Run, *, pairs: int = 5, calls: int = 20_000, trl_pairs: int = 0, trl_steps: int = 200) -> None:
    found = by_turns({"off": lambda: measure(OFF, calls), "on": lambda: measure(ON, calls)}, pairs)
    run.head("a call, a process", "off     ", "on      ", "on / off, its quartiles")
    for name in ("cpu_us", "wall_us", "rss_mib"):
        off, on = ([each[name] for each in found[side]] for side in ("off", "on"))
        run.row(name, f"{median(off):.1f}", f"{median(on):.1f}", ratio(on, off)[1])
    for name in ("first_dump_s", "next_dump_s", "dump_kib", "look_cpu_s", "stands_s", "stands_without_s"):
        run.row(name, "-", f"{median(each[name] for each in found['on']):.3f}", "")
    if trl_pairs:
        sides = {name: partial(trained, more, trl_steps) for name, more in (("off", OFF), ("on", ON))}
        of_trl: dict[str, list[Trained]] = by_turns(sides, trl_pairs)
        run.head("TRL, two ranks", "off     ", "on      ", "on / off, its quartiles")
        for name in ("step_ms", "cpu_s", "rss_mib"):
            off, on = ([getattr(each, name) for each in of_trl[side]] for side in ("off", "on"))
            run.row(name, f"{median(off):.1f}", f"{median(on):.1f}", ratio(on, off)[1])
        steps = [each.step_ms for each in of_trl["off"]]
        if trl_pairs > 1:
            run.say(f"a step, off / off: {ratio(steps[1:], steps[:-1])[1]}")
