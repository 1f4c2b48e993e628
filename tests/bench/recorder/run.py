"""What the flight recorder costs: a step of a rank, told or not, and the recorder process of a node.

The two sides of a step take turns; the node has --ranks processes that tell a step of seven phases every
second.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

from tests.bench.harness import Run, by_turns, environment, spend

QUICK = {"seconds": 3.0, "ranks": 2, "pairs": 1}
STEPS, PHASES = 300, 7
RANK = """
import os, sys, time
from rlprof_ops.runtime import profiler
prof = profiler.from_env(worker="policy_worker", rank=int(sys.argv[1]), world_size=8)
def steps(first, count, pause):
    for step in range(first, first + count):
        with prof.step(step):
            for phase in range({phases}):
                with prof.range(f"phase{phase}"):
                    pass
        time.sleep(pause)
if sys.argv[2] == "live":
    steps(1, 1 << 30, 1.0)
steps(1, 50, 0)
began = time.process_time()
steps(51, {steps}, 0)
print((time.process_time() - began) / {steps})
""".replace("{phases}", str(PHASES)).replace("{steps}", str(STEPS))


def of_a_rank(folder: str, record: bool) -> dict[str, str]:
    return environment(
        {"RLPROF_NODE_DIR": folder, "RLPROF_ON_DEMAND": "1", "RLPROF_RECORD": str(int(record))}
    )


def step_cost_us(record: bool) -> float:
    """CPU of one step of seven phases, in a process of its own."""
    with tempfile.TemporaryDirectory() as folder:
        argv = [sys.executable, "-c", RANK, "0", "measure"]
        return float(spend(argv, of_a_rank(folder, record)).output) * 1e6


def node_cost(seconds: float, ranks: int) -> tuple[float, float, float]:
    """Share of a core, MiB resident, and bytes of record an hour, of the recorder of a node."""
    with tempfile.TemporaryDirectory() as folder:
        env = of_a_rank(folder, True)
        live = [
            subprocess.Popen([sys.executable, "-c", RANK, str(rank), "live"], env=env)
            for rank in range(ranks)
        ]
        recorder = subprocess.Popen(
            [sys.executable, "-m", "rlprof_ops.recorder", f"--node-dir={folder}", "--node=n1", "--nodes=n1"],
            env=env, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL,
        )  # fmt: skip
        try:
            time.sleep(5)
            before = cpu_s(recorder.pid)
            time.sleep(seconds)
            share = (cpu_s(recorder.pid) - before) / seconds
            status = Path(f"/proc/{recorder.pid}/status").read_text()
            resident = int(status.partition("VmRSS:")[2].split()[0]) / 1024
            recorder.terminate()
            recorder.wait(30)
            size = sum(path.stat().st_size for path in Path(folder, "record").glob("record.bin"))
        finally:
            for process in (*live, recorder):
                process.kill()
                process.wait()
        return share, resident, size * 3600 / (seconds + 5)


def cpu_s(pid: int) -> float:
    words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")


def bench(run: Run, *, seconds: float = 30, ranks: int = 8, pairs: int = 10) -> None:
    found = by_turns({"recorded": lambda: step_cost_us(True), "not": lambda: step_cost_us(False)}, pairs)
    on, off = (median(side) for side in found.values())
    run.say(f"a step of {PHASES} phases, CPU: {on:.0f} us recorded, {off:.0f} us not")
    share, resident, size = node_cost(seconds, ranks)
    run.say(f"the recorder of a node with {ranks} ranks: {size / 1e6:.2f} MB of record an hour (no GPU)")
    run.limit("of a step of one second", (on - off) / 1e4, 0.5, "%")
    run.limit("of a core", 100 * share, 1, "%")
    run.limit("resident", resident, 60, "MiB")
