"""`rlprof report` of 512 reports at the default `-j`, ten times in a row, on every Python that is named.

For a Python without this package (--python python3.12,…) a virtual environment is made in a folder that
goes with the benchmark, with what the extra `analyze` needs. Nothing is cached between runs. Wall and CPU
seconds are of the command with all its processes, from the kernel; none may take longer than --most-s.
Where other work shares the processors, wall time is theirs too: the CPU seconds tell the two apart.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.analyze.shared import kernel, launch, mark, write_trace
from tests.bench.harness import ROOT, Run, environment, spend

QUICK = {"reports": 8, "runs": 1}


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


def able(python: str, folder: Path) -> str:
    """An interpreter that can import the package and what it reads reports with."""
    python = os.path.abspath(python) if os.sep in python else python
    known = subprocess.run(
        [python, "-c", "import rlprof_ops.analyze.reporting"], capture_output=True, cwd=folder, check=False
    )
    if known.returncode == 0:
        return python
    made = Path(tempfile.mkdtemp(prefix="venv-", dir=folder))
    spend([python, "-m", "venv", made], environment(without=("PYTHON",)))
    line = [made / "bin/pip", "install", "--quiet", "--disable-pip-version-check"]
    spend([*line, "--constraint", ROOT / "env/constraints.txt", f"{ROOT}[analyze]"])
    return str(made / "bin/python")


def bench(
    run: Run,
    *,
    python: tuple[str, ...] = (sys.executable,),
    reports: int = 512,
    runs: int = 10,
    most_s: float = 15.0,
) -> None:
    folder = run.folder / "run"
    make_reports(folder, reports)
    run.head("Python", "run", "wall s", "CPU s ", "load")
    costs = []
    for wanted in python:
        able_python = able(wanted, run.folder)
        version = spend(
            [able_python, "-c", "import platform; print(platform.python_version())"]
        ).output.strip()
        line = [
            able_python,
            "-m",
            "rlprof_ops",
            "report",
            folder,
            "--no-cache",
            "--output",
            run.folder / "out",
        ]
        for number in range(1, runs + 1):
            costs.append(spend(line))
            cells = f"{costs[-1].wall_s:.2f}", f"{costs[-1].cpu_s:.2f}", f"{os.getloadavg()[0]:.1f}"
            run.row(version, number, *cells)
    run.limit(
        f"{reports} reports, the slowest of {len(costs)}", max(cost.wall_s for cost in costs), most_s, "s"
    )
