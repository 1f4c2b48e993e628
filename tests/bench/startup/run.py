"""From `sbatch` to the driver's first line on three sandbox nodes: ray.sub against the same nodes started by
hand.

By hand means: bare `ray start` under srun, the head first, the others as soon as its port answers, the driver
as soon as Ray counts three nodes; no fixed sleep, no checks, no plugin, no sync. Both sides take turns.

    python tests/bench/startup/run.py [--rounds 3]
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from pathlib import Path

HOME = Path(__file__).parents[3]
sys.path.insert(0, str(HOME))

from tests.sandbox import Sandbox  # noqa: E402

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
    return seconds(sandbox, mark, ["-N3", HOME / "ray.sub"], env)


def seconds(sandbox: Sandbox, mark: Path, arguments: list, env: dict[str, str]) -> float:
    """From the call of sbatch to the driver's first line."""
    mark.unlink(missing_ok=True)
    began = time.time()
    job = sandbox.sbatch(arguments, env=env, cwd=sandbox.shared)
    sandbox.wait(job, timeout=240)
    sandbox.heal()
    return float(mark.read_text()) - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    rounds = parser.parse_args().rounds
    times: dict[str, list[float]] = {"by hand": [], "ray.sub": []}
    with Sandbox.up(nodes=3, kill_wait=5) as sandbox:
        mark = sandbox.shared / "driver_started"
        for number in range(rounds):
            times["by hand"].append(by_hand(sandbox, mark))
            times["ray.sub"].append(by_ray_sub(sandbox, mark))
            print(
                f"round {number + 1}: by hand {times['by hand'][-1]:.2f} s, ray.sub"
                f" {times['ray.sub'][-1]:.2f} s",
                flush=True,
            )
    hand, ours = (statistics.median(times[side]) for side in ("by hand", "ray.sub"))
    print(
        f"sbatch to driver, 3 nodes, median of {rounds}: by hand {hand:.2f} s, ray.sub {ours:.2f} s, ratio"
        f" {ours / hand:.2f} (aim 1.2)"
    )


if __name__ == "__main__":
    main()
