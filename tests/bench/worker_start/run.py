"""From an actor's creation to its first answer: not profiled, in a session of ours, and with Ray's stock
nsight key.

Each worker has a runtime env of its own (as ranks have), so stock Ray tries its options for every one of
them. The two profiled sides record the same (`-t nvtx`, no sampling). Actors start one after the other, after
a first one that pays for what is paid once a node.

    python tests/bench/worker_start/run.py [--actors 5] [--rounds 2]
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

HOME = Path(__file__).parents[3]
sys.path.insert(0, str(HOME / "python"))

from rlprof_ops import rayenv  # noqa: E402
from rlprof_ops.request import request_from_dict  # noqa: E402

DRIVER = r"""
import json, os, sys, time
import ray
from rlprof_ops.runtime import profiler

side, actors, folder = sys.argv[1], int(sys.argv[2]), sys.argv[3]
ray.init(num_cpus=1, include_dashboard=False, _temp_dir=folder, logging_level="error", log_to_driver=False)

@ray.remote(num_cpus=0)
class Worker:
    def answer(self):
        return os.getpid()

def runtime_env(rank):
    env = {"env_vars": {"RANK": str(rank)}}
    if side == "ours":
        env |= profiler.runtime_env("policy_worker", rank)
    if side == "stock":
        env["nsight"] = {"t": "nvtx", "s": "none", "cpuctxsw": "none", "o": f"'policy_worker_{rank}_%p'"}
    return env

for rank in range(actors + 1):
    began = time.monotonic()
    worker = Worker.options(runtime_env=runtime_env(rank)).remote()
    ray.get(worker.answer.remote(), timeout=120)
    print(time.monotonic() - began, flush=True)
    ray.kill(worker)
"""


def seconds(side: str, actors: int) -> list[float]:
    """One Ray cluster of its own; the first actor's time comes first."""
    with tempfile.TemporaryDirectory() as node_dir:
        env = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("RLPROF_", "RAY_", "NRL_"))
        }
        env |= {"PYTHONPATH": str(HOME / "python"), "RAY_AUTH_MODE": "disabled", "RLPROF_NODE_DIR": node_dir}
        # Stock Ray runs whatever `python` is: give it ours.
        env["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), env["PATH"]])
        if side == "ours":
            request = {"captures": [{"workers": "policy_worker", "steps": "3:5", "options": {"t": "nvtx"}}]}
            env |= rayenv.environment() | {"RLPROF_REQUEST_JSON": request_from_dict(request).to_json()}
        folder = f"/tmp/rlprof-b{os.getpid()}"
        try:
            done = subprocess.run(
                [sys.executable, "-c", DRIVER, side, str(actors), folder],
                env=env,
                capture_output=True,
                text=True,
                timeout=600,
            )
        finally:
            shutil.rmtree(folder, ignore_errors=True)
    if done.returncode:
        sys.exit(f"{side}: {done.stderr[-2000:]}")
    return [json.loads(line) for line in done.stdout.splitlines()]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--actors", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=2)
    options = parser.parse_args()
    first: dict[str, list[float]] = {"plain": [], "ours": [], "stock": []}
    later: dict[str, list[float]] = {"plain": [], "ours": [], "stock": []}
    for _ in range(options.rounds):
        for side in first:
            head, *rest = seconds(side, options.actors)
            first[side].append(head)
            later[side] += rest
    print(f"{'':24}{'first on the node':>20}{'each further one':>20}{'over plain':>14}")
    plain = statistics.median(later["plain"])
    for side, words in (
        ("plain", "not profiled"),
        ("ours", "session of ours"),
        ("stock", "Ray's stock nsight"),
    ):
        median = statistics.median(later[side])
        print(
            f"{words:24}{statistics.median(first[side]):>18.2f} s{median:>18.2f} s{median - plain:>12.2f} s"
        )
    ours, stock = (statistics.median(later[side]) - plain for side in ("ours", "stock"))
    print(
        f"overhead of ours / of stock: {ours / stock:.2f} (aim < 1); {options.rounds} rounds of"
        f" {options.actors} actors"
    )


if __name__ == "__main__":
    main()
