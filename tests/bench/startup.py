"""From `sbatch` to the driver's first line on three sandbox nodes: ray.sub, and started by hand.

By hand means: bare `ray start` under srun, the head first, the others as soon as its port answers, the
driver as soon as Ray counts three nodes; no fixed sleep, no checks, no plugin, no sync. Both sides take
turns.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

from tests.bench.harness import ROOT, Run, by_turns, ratio
from tests.sandbox import Sandbox

NEEDS = ("slurm", "ray")
QUICK = {"rounds": 1}
MOST = 1.2  # times as long as by hand
BY_HAND = """#!/bin/bash
PATH={venv}/bin:$PATH
export RAY_AUTH_MODE=disabled
start() {{ python -c 'from ray.scripts.scripts import main; main()' start --block --disable-usage-stats "$@"; }}
export -f start
ip={ip}
srun -N1 -n1 -w n1 --overlap --mpi=none bash -c "start --head --port=6500 --include-dashboard=false --node-ip-address=$ip" &
until (exec 3<> /dev/tcp/$ip/6500) 2> /dev/null; do sleep 0.1; done
srun -N2 -n2 -x n1 --overlap --mpi=none bash -c "start --address=$ip:6500 --node-ip-address=\\$(hostname -I | cut -d' ' -f1)" &
python - "$ip:6500" << 'END'
import sys, time, ray
ray.init(address=sys.argv[1], log_to_driver=False)
while sum(node["Alive"] for node in ray.nodes()) < 3:
    time.sleep(0.1)
END
date +%s.%N > {mark}
scancel $SLURM_JOB_ID
"""


def by_hand(sandbox: Sandbox, mark: Path) -> float:
    script = sandbox.shared / "by_hand.sh"
    script.write_text(BY_HAND.format(venv=sys.prefix, ip=sandbox.address("n1"), mark=mark))
    return seconds(sandbox, mark, ["-N3", script], {})


def by_ray_sub(sandbox: Sandbox, mark: Path) -> float:
    env = {
        "COMMAND": f"date +%s.%N > {mark}",
        "RLPROF_VENV": sys.prefix,
        "RLPROF_STEPS": "3:5",
        "RLPROF_WORKERS": "*",
    }
    return seconds(sandbox, mark, ["-N3", ROOT / "ray.sub"], env)


def seconds(sandbox: Sandbox, mark: Path, arguments: list, env: dict[str, str]) -> float:
    """From the call of sbatch to the driver's first line."""
    mark.unlink(missing_ok=True)
    began = time.time()
    job = sandbox.sbatch(arguments, env=env, cwd=sandbox.shared)
    sandbox.wait(job, timeout=240)
    sandbox.heal()
    return float(mark.read_text()) - began


def bench(run: Run, *, rounds: int = 3) -> None:
    with Sandbox.up(nodes=3, kill_wait=5) as sandbox:
        mark = sandbox.shared / "driver_started"
        sides = {"by hand": lambda: by_hand(sandbox, mark), "ray.sub": lambda: by_ray_sub(sandbox, mark)}
        found = by_turns(sides, rounds)
    run.head("round", *(f"{side}, s" for side in found))
    for number, times in enumerate(zip(*found.values(), strict=True), 1):
        run.row(number, *(f"{each:.2f}" for each in times))
    middle, words = ratio(found["ray.sub"], found["by hand"])
    run.limit(f"ray.sub / by hand, {words}", middle, MOST)
