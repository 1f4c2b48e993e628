"""What Ray's unfinished tasks do, as Ray itself tells it."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.needs import need

from rlprof_ops.supervisor.node import ray_tasks
from rlprof_ops.supervisor.node.resource_probe import Fetching

SECOND = 10**9


def task(name: str, kind: int = 0, **at_s: float) -> Any:
    """`at_s`: the number of a state -> when it began, `_8=12.0`."""
    times = {int(state[1:]): int(second * SECOND) for state, second in at_s.items()}
    return SimpleNamespace(
        state_updates=SimpleNamespace(state_ts_ns=times), task_info=SimpleNamespace(name=name, type=kind)
    )


def test_those_that_began_last_come_first_and_few_are_shown():
    events = [
        task("Rank.run", _1=1, _5=2, _8=3),
        task("Rank.run", _1=1, _5=2, _8=4),
        task("score", _1=40, _2=41, _8=42, _11=43),
        task("score", _1=40, _8=41, _12=44),
        task("score", _1=50),
        task("driver", 3, _8=0),
        task("late", _1=95, _8=96),
    ]
    assert ray_tasks.sentence(events, 100 * SECOND) == (
        "score has waited 50.0 s for what another task makes; Rank.run has run for 97.0 s (2 tasks)"
    )
    assert ray_tasks.sentence(events, 12 * SECOND) == ""
    many = [task(f"t{number}", _8=number) for number in range(6)]
    assert ray_tasks.sentence(many, 100 * SECOND).endswith("t2 has run for 98.0 s; and 2 more")
    assert ray_tasks.sentence([task("odd"), task("newer", _99=1)], 100 * SECOND) == ""


def node(address: str, *activity: str, **resources: float) -> Any:
    return SimpleNamespace(node_ip_address=address, node_activity=activity, total_resources=resources)


def test_a_node_fetches_since_the_first_of_the_looks_that_all_say_so():
    fetching, works = Fetching(), "Pulling task arguments."
    named = node("10.0.0.1", "Busy workers on node.", works, **{"CPU": 4.0, "slurm_node:n1": 1.0})
    for second in range(50, 60, 5):
        fetching.look([named, node("10.0.0.2", works), node("10.0.0.3"), SimpleNamespace()], second * SECOND)
    fetching.look([named, node("10.0.0.2")], 60 * SECOND)
    fetching.look([named, node("10.0.0.2", works)], 65 * SECOND)
    assert fetching.since_ns == {"n1": 50 * SECOND, "10.0.0.2": 65 * SECOND}
    said = ray_tasks.sentence([task("score", _2=40)], 70 * SECOND, fetching.since_ns)
    waits = "score has waited 30.0 s for a node, or for its arguments to come there"
    assert said == f"{waits}; node n1 has fetched arguments of waiting tasks for 20.0 s"
    many = {f"n{number}": 0 for number in range(6)}
    assert ray_tasks.sentence([], 70 * SECOND, many).endswith("for 70.0 s; and 2 more such nodes")


PROGRAM = """
import json, os, signal, subprocess, sys, threading, time
import ray
from ray.cluster_utils import Cluster
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

here = {"num_cpus": 4, "resources": {"head": 9, "slurm_node:n1": 1}}
cluster = Cluster(initialize_head=True, head_node_args=here)
other = cluster.add_node(num_cpus=1, resources={"other": 1})
ray.init(address=cluster.address)

@ray.remote
class Judge:
    def ready(self):
        pass
    def score(self):
        time.sleep(600)

@ray.remote
def rollout():
    time.sleep(600)

@ray.remote
def train(batch):
    pass

@ray.remote(resources={"other": 1})
def large():
    return bytes(50 << 20)

there, judge = large.remote(), Judge.remote()
ray.wait([there], fetch_local=False)
ray.get(judge.ready.remote())
[raylet] = other.all_processes["raylet"]
os.kill(raylet.process.pid, signal.SIGSTOP)
try:
    # The owner asks the node that has most of the arguments for a place, which does not answer; else the
    # node that is named, which fetches.
    named = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
    unplaced = train.options(name="moved", resources={"head": 1}).remote(there)
    fetched = train.options(name="moved", scheduling_strategy=named).remote(there)
    out = [judge.score.remote(), train.remote(rollout.remote()), rollout.remote()]
    words = [sys.executable, "-m", "rlprof_ops.supervisor.node.resource_probe", cluster.address]
    probe = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    lines, until = [], time.monotonic() + float(sys.argv[1])
    threading.Thread(target=lambda: lines.extend(probe.stdout), daemon=True).start()
    told = []
    while time.monotonic() < until and len(told) < 5:
        time.sleep(2)
        probe.stdin.write(b"\\n")
        probe.stdin.flush()
        said = [json.loads(line)["tasks"] for line in lines if line.startswith(b"{")]
        told = said[-1].split("; ") if said else []
    print(json.dumps(told), flush=True)
    probe.stdin.close()
    probe.wait(20)
finally:
    os.kill(raylet.process.pid, signal.SIGCONT)
"""


@pytest.mark.ray
@pytest.mark.timeout(480)
def test_a_real_ray_tells_what_runs_what_waits_and_what_is_fetched(tmp_path: Path):
    """On two nodes, of which one answers no more: what lies there is fetched without end."""
    need("ray")
    program = tmp_path / "driver.py"
    program.write_text(PROGRAM)
    began = time.monotonic()
    with tempfile.TemporaryDirectory(dir="/tmp", ignore_cleanup_errors=True) as short:  # holds sockets
        done = subprocess.run(
            [sys.executable, str(program), "240"], env={**os.environ, "RAY_TMPDIR": short},
            capture_output=True, text=True, timeout=400, check=False,
        )  # fmt: skip
    [line] = [line for line in done.stdout.splitlines() if line.startswith("[")] or [done.stderr[-3000:]]
    said = json.loads(line)
    print(f"{time.monotonic() - began:.0f} s:", said)
    seconds = r"(\d\d\.\d|\d\d\d) s"
    for wanted in (
        rf"moved has waited {seconds} for a node, or for its arguments to come there \(2 tasks\)",
        f"node n1 has fetched arguments of waiting tasks for {seconds}",
        rf"rollout has run for {seconds} \(2 tasks\)",
        f"train has waited {seconds} for what another task makes",
        f"Judge.score has run for {seconds}",
    ):
        assert [each for each in said if re.fullmatch(wanted, each)], (wanted, said)
