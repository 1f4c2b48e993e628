"""From an actor's creation to its first answer: not profiled, in a session of ours, with Ray's stock key.

Each worker has a runtime env of its own (as ranks have), so stock Ray tries its options for every one of
them. The two profiled sides record the same (`-t nvtx`, no sampling). Actors start one after the other,
after a first one that pays for what is paid once a node.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
from pathlib import Path
from statistics import median

from tests.bench.harness import Run, by_turns, environment, spend

from rlprof_ops import rayenv
from rlprof_ops.request import request_from_dict

NEEDS = ("ray", "nsys")
QUICK = {"actors": 1, "rounds": 1}
SIDES = {"plain": "not profiled", "ours": "session of ours", "stock": "Ray's stock nsight"}
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

times = []
for rank in range(actors + 1):
    began = time.monotonic()
    worker = Worker.options(runtime_env=runtime_env(rank)).remote()
    ray.get(worker.answer.remote(), timeout=120)
    times.append(time.monotonic() - began)
    ray.kill(worker)
print(json.dumps(times))
"""


def seconds(side: str, actors: int) -> list[float]:
    """One Ray cluster of its own; the first actor's time comes first."""
    folder = f"/tmp/rlprof-b{os.getpid()}"
    with tempfile.TemporaryDirectory() as node_dir:
        env = environment({"RAY_AUTH_MODE": "disabled", "RLPROF_NODE_DIR": node_dir})
        # Stock Ray runs whatever `python` is: give it ours.
        env["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), env["PATH"]])
        if side == "ours":
            request = {"captures": [{"workers": "policy_worker", "steps": "3:5", "options": {"t": "nvtx"}}]}
            env |= rayenv.environment() | {"RLPROF_REQUEST_JSON": request_from_dict(request).to_json()}
        try:
            said = spend([sys.executable, "-c", DRIVER, side, str(actors), folder], env).output
        finally:
            shutil.rmtree(folder, ignore_errors=True)
    return json.loads([line for line in said.splitlines() if line.startswith("[")][-1])


def bench(run: Run, *, actors: int = 5, rounds: int = 2) -> None:
    found = by_turns({side: lambda side=side: seconds(side, actors) for side in SIDES}, rounds)
    later = {side: median(each for times in some for each in times[1:]) for side, some in found.items()}
    run.head("", "first on the node, s", "each further one, s", "over plain, s")
    for side, words in SIDES.items():
        first = median(times[0] for times in found[side])
        run.row(words, *(f"{each:.2f}" for each in (first, later[side], later[side] - later["plain"])))
    ours, stock = (later[side] - later["plain"] for side in ("ours", "stock"))
    run.limit("overhead of ours / of stock", ours / stock, 1.0)
