"""What importing the request costs a training process, and how long a plan of a large run takes.

Each round is a process of its own; the other side is the same Python doing nothing, the difference is what
is claimed. The large run: 64 nodes x 8 ranks of 5 workers with 20 windows each, 51,200 reports.
"""

from __future__ import annotations

import sys
from statistics import median

from tests.bench.harness import Cost, Run, by_turns, environment, spend

QUICK = {"rounds": 2}
LIMIT_IMPORT_S, LIMIT_PLAN_S = 0.050, 0.5
WORLD = ",".join(f"worker{i}=512" for i in range(5))
REQUEST = 'captures: [{workers: "*", steps: "1:41:2"}]\n'


def bench(run: Run, *, rounds: int = 15) -> None:
    path = run.folder / "request.yaml"
    path.write_text(REQUEST)
    plan = ("-m", "rlprof_ops", "plan", str(path), "--world", WORLD)
    nothing, imported, planned = "python, nothing", "import rlprof_ops.request", "rlprof plan, 51,200 reports"
    words = {
        nothing: ("-c", "pass"),
        imported: ("-c", "import rlprof_ops.request"),
        planned: plan,
        "rlprof plan --json": (*plan, "--json"),
    }
    sides = {
        name: lambda argv=argv: spend([sys.executable, *argv], environment()) for name, argv in words.items()
    }
    found: dict[str, list[Cost]] = by_turns(sides, rounds + 1)
    least = {}
    run.head("side" + " " * 24, "wall, median ms", "least", "CPU, median ms", "least")
    for name, (_, *costs) in found.items():  # the first fills the caches
        walls, cpus = [cost.wall_s for cost in costs], [cost.cpu_s for cost in costs]
        least[name] = min(cpus)
        run.row(name, *(f"{each(times) * 1e3:.1f}" for times in (walls, cpus) for each in (median, min)))
    # One thread that waits for nothing: CPU time is what it takes on a machine that does nothing else.
    cost_s = least[imported] - least[nothing]
    run.limit("CPU of the import", cost_s * 1e3, LIMIT_IMPORT_S * 1e3, "ms")
    run.limit("CPU of the plan with its process", least[planned] * 1e3, LIMIT_PLAN_S * 1e3, "ms")
