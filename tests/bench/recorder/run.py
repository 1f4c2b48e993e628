"""What the flight recorder costs: a step of a rank, told or not, and the recorder process of a node.

    python tests/bench/recorder/run.py [--seconds 30] [--ranks 8] [--json FILE]

The two sides of a step alternate, ten pairs; the node has `--ranks` processes that tell a step of seven
phases every second. Exits 1 when an aim is missed: 0.5 % of a step of one second, 1 % of a core, 60 MiB.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

PACKAGE = Path(__file__).resolve().parents[3] / "python"
STEPS, PHASES, PAIRS = 300, 7, 10
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


def environment(folder: str, record: bool) -> dict[str, str]:
    env = {name: value for name, value in os.environ.items() if not name.startswith("RLPROF_")}
    env |= {"PYTHONPATH": str(PACKAGE), "RLPROF_NODE_DIR": folder, "RLPROF_ON_DEMAND": "1"}
    return env | {"RLPROF_RECORD": "1" if record else "0"}


def step_cost_s(record: bool) -> float:
    """CPU of one step of seven phases, in a process of its own."""
    with tempfile.TemporaryDirectory() as folder:
        argv = [sys.executable, "-c", RANK, "0", "measure"]
        done = subprocess.run(
            argv, env=environment(folder, record), capture_output=True, text=True, check=True
        )
        return float(done.stdout)


def node_cost(seconds: float, ranks: int) -> tuple[float, float, float]:
    """Share of a core, MiB resident, and bytes of record an hour, of the recorder of a node."""
    with tempfile.TemporaryDirectory() as folder:
        env = environment(folder, True)
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


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=30)
    parser.add_argument("--ranks", type=int, default=8)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    pairs = [(step_cost_s(True), step_cost_s(False)) for _ in range(PAIRS)]
    on, off = (median(side) for side in zip(*pairs, strict=True))
    share, resident, size = node_cost(options.seconds, options.ranks)
    sides = f"{on * 1e6:.0f} us recorded, {off * 1e6:.0f} us not"
    print(f"a step of {PHASES} phases, CPU: {sides}; of 1 s: {on - off:.3%}")
    print(f"the recorder of a node with {options.ranks} ranks: {share:.2%} of a core, {resident:.1f} MiB,")
    print(f"  {size / 1e6:.2f} MB of record an hour (no GPU)")
    missed = [
        name
        for name, is_missed in (
            ("0.5 % of a step of one second", on - off > 0.005),
            ("1 % of a core", share > 0.01),
            ("60 MiB", resident > 60),
        )
        if is_missed
    ]
    for name in missed:
        print(f"MISSED: {name}")
    if options.json:
        found = {"step_on_s": on, "step_off_s": off, "core_share": share, "resident_mib": resident}
        options.json.write_text(json.dumps(found | {"bytes_an_hour": size, "missed": missed}))
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
