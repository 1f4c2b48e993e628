"""What the flight recorder costs a run: the demo and TRL with the recorder on and off, by turns.

"On" is `RLPROF_RECORD=1` in every process and a real recorder beside them, as on a node of a job; "off" has
the same adapters and no recorder. Seconds of a step are the run's own, the first left out, and a run counts
by their median; a run has --steps, else 20 of the demo, 300 of TRL. The ratio is the median over the pairs;
the same of two runs without a recorder, one after the other, says how far a ratio can be trusted on this
machine. On a busy one it cannot to 0.5 %, so what the recorder process has used of a core, and of memory,
is told too; `recorder` has the price of a step, and `recorder.turns` the ratio within one run.
"""

from __future__ import annotations

import contextlib
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from tests.bench.harness import Run, by_turns, environment, ratio, spend
from tests.trainers import runs

from rlprof_ops.job.knobs import python_path

NEEDS = ("ray", "torch")
QUICK = {"programs": ("demo",), "pairs": 1, "steps": 3}
_STEPS = {"demo": 20, "trl": 300}  # a step of the demo is half a second, one of TRL's 40 ms
TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Recorded:
    """Median seconds of a step, and of the recorder: its share of a core and MiB."""

    step_s: float
    core: float = 0.0
    mib: float = 0.0


def bench(
    run: Run, *, programs: tuple[str, ...] = ("demo", "trl"), pairs: int = 10, steps: int | None = None
) -> None:
    run.head("run ", "on / off (quartiles)    ", "off / off (quartiles)   ", "recorder: of a core", "MiB")
    for name in programs:
        count = steps or _STEPS[name]
        sides = {side: partial(trained, name, count, on) for side, on in (("on", True), ("off", False))}
        found: dict[str, list[Recorded]] = by_turns(sides, pairs)
        on, off = ([each.step_s for each in found[side]] for side in ("on", "off"))
        noise = ratio(off[1:], off[:-1])[1] if pairs > 1 else "-"
        core = statistics.median(each.core for each in found["on"])
        run.row(name, ratio(on, off)[1], noise, f"{core:.2%}", f"{max(each.mib for each in found['on']):.0f}")


def trained(name: str, steps: int, on: bool) -> Recorded:
    with tempfile.TemporaryDirectory() as work:
        node_dir = Path(work) / "node"
        (node_dir / "events").mkdir(parents=True)
        env = of_a_job(node_dir, on)
        with recorder(Path(work), node_dir, env) if on else contextlib.nullcontext([]) as cost:
            times = PROGRAMS[name](Path(work), steps, env)
    if sorted(times) != list(range(1, steps + 1)):
        sys.exit(f"{name} told the steps {sorted(times)} of {steps}")
    return Recorded(statistics.median(times[number] for number in range(2, steps + 1)), *cost)


def of_a_job(node_dir: Path, on: bool) -> dict[str, str]:
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
    text = spend(argv, environment(env | {"RAY_AUTH_MODE": "disabled"}), work).output
    told = re.findall(r"^step +(\d+) .*?([\d.]+) (ms|s)$", text, re.M)
    return {int(step): float(length) / (1000 if unit == "ms" else 1) for step, length, unit in told}


def trl(work: Path, steps: int, env: dict[str, str]) -> dict[int, float]:
    one = runs.trainer_run("trl", work=work, steps=steps, env=env)
    return runs.step_times("trl", spend(one.argv, one.environment(), one.cwd).output)


PROGRAMS = {"demo": demo, "trl": trl}
