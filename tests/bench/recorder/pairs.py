"""What the flight recorder costs a run: the demo and TRL with the recorder on and off, by turns.

    python tests/bench/recorder/pairs.py [--pairs 10] [--steps N] [demo] [trl]

"On" is `RLPROF_RECORD=1` in every process and a real recorder beside them, as on a node of a job; "off" has
the same adapters and no recorder. Seconds of a step are the run's own, the first left out, and a run counts
by their median. The ratio is the median over the pairs; the same of two runs without a recorder, one after
the other, says how far a ratio can be trusted on this machine. On a busy one it cannot to 0.5 %, so what the
recorder process has used of a core, and of memory, is told too; `run.py` has the price of a step, and
`turns.py` the ratio within one run.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve()
sys.path[:0] = [str(HERE.parents[3]), str(HERE.parents[3] / "python")]

from tests.trainers import runs  # noqa: E402

from rlprof_ops.job.knobs import python_path  # noqa: E402

TIMEOUT_S = 900
_STEPS = {"demo": 20, "trl": 300}  # a step of the demo is half a second, one of TRL's 40 ms
TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Run:
    """Median seconds of a step, and of the recorder: its share of a core and MiB."""

    step_s: float
    core: float = 0.0
    mib: float = 0.0


def main() -> int:
    arguments = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    arguments.add_argument("programs", nargs="*", metavar="PROGRAM")
    arguments.add_argument("--pairs", type=int, default=10)
    arguments.add_argument("--steps", type=int, help="of a run; else 20 of the demo, 300 of TRL")
    options = arguments.parse_args()
    if unknown := set(options.programs) - {"demo", "trl"}:
        arguments.error(f"no {', '.join(sorted(unknown))}; there are demo, trl")
    for name in options.programs or ("demo", "trl"):
        sides: tuple[list[Run], list[Run]] = ([], [])
        for pair in range(options.pairs):
            for on in (False, True) if pair % 2 else (True, False):
                sides[on].append(run(name, options.steps or _STEPS[name], on))
            off, on_ = sides[False][-1], sides[True][-1]
            print(f"{name} off {off.step_s:.4f} s  on {on_.step_s:.4f} s a step", flush=True)
        ratios = [on.step_s / off.step_s for off, on in zip(*sides, strict=True)]
        noise = [later.step_s / earlier.step_s for earlier, later in itertools.pairwise(sides[False])]
        core, mib = statistics.median(one.core for one in sides[True]), max(one.mib for one in sides[True])
        print(f"{name}: on / off {figures(ratios)}; off / off {figures(noise)}")
        print(f"{name}: the recorder's process {core:.2%} of a core, {mib:.0f} MiB", flush=True)
    return 0


def figures(values: list[float]) -> str:
    low, middle, high = statistics.quantiles(values, n=4) if len(values) > 1 else [float("nan")] * 3
    return f"{middle:.4f} (quartiles {low:.4f} to {high:.4f})"


def run(name: str, steps: int, on: bool) -> Run:
    with tempfile.TemporaryDirectory() as work:
        node_dir = Path(work) / "node"
        (node_dir / "events").mkdir(parents=True)
        env = environment(node_dir, on)
        with recorder(Path(work), node_dir, env) if on else contextlib.nullcontext([]) as cost:
            times = PROGRAMS[name](Path(work), steps, env)
    if sorted(times) != list(range(1, steps + 1)):
        sys.exit(f"{name} told the steps {sorted(times)} of {steps}")
    return Run(statistics.median(times[number] for number in range(2, steps + 1)), *cost)


def environment(node_dir: Path, on: bool) -> dict[str, str]:
    """Of a process of a job, as far as the recorder needs it."""
    return {
        "PYTHONPATH": python_path(None),
        "RLPROF_ON_DEMAND": "1",
        "RLPROF_NODE_DIR": str(node_dir),
        "RLPROF_NODE": "n1",
        "RLPROF_RECORD": str(int(on)),
    }


class Cost(list[float]):
    """Of a recorder that has ended: its share of a core, and MiB."""

    pid = 0


@contextlib.contextmanager
def recorder(work: Path, node_dir: Path, env: dict[str, str]) -> Iterator[Cost]:
    """A node's recorder, the head's; afterwards its share of a core and its MiB."""
    run_dir = work / "1-logs"
    run_dir.mkdir()
    argv = [sys.executable, "-m", "rlprof_ops.recorder", "--node-dir", str(node_dir), "--node", "n1"]
    argv += ["--nodes", "n1", "--run-dir", str(run_dir), "--job", "1"]
    process = subprocess.Popen(
        argv, env={**os.environ, **env}, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL
    )
    cost = Cost()
    cost.pid = process.pid
    began = time.monotonic()
    try:
        yield cost
        used = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
        status = Path(f"/proc/{process.pid}/status").read_text()
        cost.append((int(used[11]) + int(used[12])) / TICKS / (time.monotonic() - began))
        cost.append(int(re.findall(r"VmHWM:\s+(\d+)", status)[0]) / 1024)
    finally:
        process.terminate()
        process.wait(20)
    if not (node_dir / "record").exists():
        sys.exit("the recorder has kept nothing")


def demo(work: Path, steps: int, env: dict[str, str]) -> dict[int, float]:
    argv = [sys.executable, "-u", "-m", "rlprof_ops.demo", "--address", "local", "--steps", str(steps)]
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("RLPROF_", "RAY_"))}
    text = output(argv, work, {**kept, **env, "RAY_AUTH_MODE": "disabled"})
    told = re.findall(r"^step +(\d+) .*?([\d.]+) (ms|s)$", text, re.M)
    return {int(step): float(length) / (1000 if unit == "ms" else 1) for step, length, unit in told}


def trl(work: Path, steps: int, env: dict[str, str]) -> dict[int, float]:
    one = runs.trainer_run("trl", work=work, steps=steps, env=env)
    return runs.step_times("trl", output(list(one.argv), one.cwd, one.environment()))


def output(argv: list[str], cwd: Path, env: dict[str, str]) -> str:
    done = subprocess.run(
        argv, cwd=cwd, env=env, capture_output=True, text=True, errors="replace", timeout=TIMEOUT_S
    )
    text = done.stdout + done.stderr
    if done.returncode != 0:
        sys.exit(f"{' '.join(argv)[:200]} ended with {done.returncode}:\n{text[-3000:]}")
    return text


PROGRAMS = {"demo": demo, "trl": trl}

if __name__ == "__main__":
    sys.exit(main())
