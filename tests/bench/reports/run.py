"""`rlprof report` of 512 reports at the default `-j`, ten times in a row, on every Python that is named.

    python tests/bench/reports/run.py [--python python3.12]... [--reports 512] [--runs 10] [--most-s 15]

For a Python without this package a virtual environment is made in a folder that goes with the benchmark,
with what the extra `analyze` needs. Nothing is cached between runs. Wall and CPU seconds are of the command
with all its processes, from the kernel; a run that takes longer than `--most-s` makes the exit code 1. Where
other work shares the processors, wall time is theirs too: the CPU seconds tell the two apart.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

REPO = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(REPO))

from tests.analyze.shared import kernel, launch, mark, write_trace  # noqa: E402


def make_reports(folder: Path, count: int, kernels: int = 180) -> None:
    """A torch trace a rank, eight ranks a host, of two phases and so many kernels."""
    for rank in range(count):
        host = f"n{rank // 8}"
        events = [mark("step 3", 0, 100_000), mark("logprob", 10, 9_000), mark("train", 10_000, 89_000)]
        for number in range(kernels):
            events.append(launch(10_010 + number, number))
            events.append(kernel(f"gemm_{number % 7}", 10_200 + number * 400, 300.0, correlation=number))
        name = f"policy_worker_rank{rank}_step3-3_{host}_{1000 + rank}.pt.trace.json.gz"
        write_trace(
            folder / "profiles" / "torch" / "policy_worker" / f"rank{rank}" / name,
            events,
            base_ns=1_790_857_026_000_000_000,
            host_name=host,
        )


def environment_of(python: str, folder: Path) -> str:
    """An interpreter that can import the package and what it reads reports with."""
    python = os.path.abspath(python) if os.sep in python else python
    known = subprocess.run(
        [python, "-c", "import rlprof_ops.analyze.reporting"], capture_output=True, cwd=folder, check=False
    )
    if known.returncode == 0:
        return python
    made = Path(tempfile.mkdtemp(prefix="venv-", dir=folder))
    subprocess.run([python, "-m", "venv", made], check=True)
    line = [made / "bin/pip", "install", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*line, "--constraint", REPO / "env/constraints.txt", f"{REPO}[analyze]"], check=True)
    return str(made / "bin/python")


def report(python: str, folder: Path, output: Path) -> tuple[float, float]:
    """(wall, CPU) seconds of one `rlprof report` and its processes."""
    begun = time.monotonic()
    line = [python, "-m", "rlprof_ops", "report", folder, "--no-cache", "--output", output]
    process = subprocess.Popen(line, stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"rlprof report ended with {process.returncode}")
    return time.monotonic() - begun, usage.ru_utime + usage.ru_stime


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--python", action="append", help="an interpreter; may be given again")
    parser.add_argument("--reports", type=int, default=512)
    parser.add_argument("--runs", type=int, default=10)
    parser.add_argument("--most-s", type=float, default=15.0)
    asked = parser.parse_args()
    late = 0
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        make_reports(folder / "run", asked.reports)
        for wanted in asked.python or [sys.executable]:
            python = environment_of(wanted, folder)
            version = subprocess.check_output(
                [python, "-c", "import platform; print(platform.python_version())"]
            )
            print(f"Python {version.decode().strip()}, {asked.reports} reports, {os.cpu_count()} CPUs")
            costs = []
            for number in range(1, asked.runs + 1):
                wall, cpu = report(python, folder / "run", folder / "out")
                costs.append((wall, cpu))
                print(
                    f"  run {number:2}  {wall:6.2f} s wall  {cpu:6.2f} s CPU  load {os.getloadavg()[0]:.1f}",
                    flush=True,
                )
            slow = sum(wall > asked.most_s for wall, _ in costs)
            late += slow
            print(
                f"  {len(costs) - slow} of {len(costs)} in {asked.most_s:g} s; at most"
                f" {max(wall for wall, _ in costs):.2f} s wall, {max(cpu for _, cpu in costs):.2f} s CPU"
            )
    return 1 if late else 0


if __name__ == "__main__":
    raise SystemExit(main())
