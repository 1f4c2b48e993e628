"""What a driver waits for, as a sentence: from demands, nodes and a clock that is moved forward."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from tests.needs import need

from rlprof_ops.supervisor.node.resource_probe import BUSY_S, IMPOSSIBLE_S, Demand, UnmetDemands

NODES = [{"CPU": 2.0, "GPU": 1.0, "node:10.0.0.1": 1.0}, {"CPU": 2.0}]
BIG = Demand.of({"CPU": 8, "node:__internal_head__": 0.001}, 1)


def test_what_no_node_has_is_said_soon():
    waiting = UnmetDemands()
    assert waiting.sentence([BIG], NODES, 100) == ""
    assert waiting.sentence([BIG], NODES, 100 + IMPOSSIBLE_S) == (
        "an actor or task asks for 8 CPU, and no node has that (the largest has 2 CPU)"
    )
    assert waiting.sentence([], NODES, 200) == ""
    assert waiting.sentence([BIG], NODES, 201) == "", "a new wait begins anew"


def test_what_is_in_use_is_said_later():
    waiting = UnmetDemands()
    demands = [Demand.of({"GPU": 1, "CPU": 1}, 3)]
    waiting.sentence(demands, NODES, 0)
    assert waiting.sentence(demands, NODES, IMPOSSIBLE_S + 1) == ""
    assert waiting.sentence(demands, NODES, BUSY_S) == (
        "3 actors or tasks ask for 1 CPU and 1 GPU each; all that fits is in use (Ray has 4 CPU, 1 GPU)"
    )


def test_a_queue_that_moves_waits_for_nothing():
    waiting = UnmetDemands()
    for second in range(0, 200, 5):
        assert waiting.sentence([Demand.of({"CPU": 1}, 1000 - second)], NODES, second) == ""


def test_placement_groups_and_many_demands():
    waiting = UnmetDemands()
    demands = [Demand.of({"CPU": 4}, 2, group=True), *(Demand.of({"CPU": n}, 1) for n in range(10, 14))]
    waiting.sentence(demands, [], 0)
    said = waiting.sentence(demands, [], 100)
    assert said.startswith("2 bundles of a placement group ask for 4 CPU each, and no node has that")
    assert said.endswith("; and 2 more")


@pytest.mark.ray
@pytest.mark.timeout(300)
def test_a_real_ray_tells_its_waiting_actors(tmp_path):
    """An actor that asks for 8 CPUs and a placement group for GPUs, on a Ray with two CPUs."""
    need("ray")
    probe = (
        "import sys, threading, rlprof_ops.supervisor.node.resource_probe as probe\n"
        "probe.POLL_S, probe.IMPOSSIBLE_S = 0.5, 1.0\n"
        "threading.Thread(target=probe._watch, args=(sys.argv[1], probe.Fetching()), daemon=True).start()\n"
        "sys.stdin.read()\n"
    )
    program = tmp_path / "driver.py"
    program.write_text(
        "import ray, subprocess, sys, threading\n"
        "from ray.util.placement_group import placement_group\n"
        "ray.init(address='local', num_cpus=2, num_gpus=0, include_dashboard=False)\n"
        "big = ray.remote(num_cpus=8)(type('Big', (), {})).remote()\n"
        "group = placement_group([{'CPU': 1, 'GPU': 4}])\n"
        "address = ray.get_runtime_context().gcs_address\n"
        f"words = [sys.executable, '-c', {probe!r}, address]\n"
        "probe = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)\n"
        "limit = threading.Timer(150, probe.kill)\n"
        "limit.start()\n"
        "for line in probe.stdout:\n"
        "    print(line, end='', flush=True)\n"
        "    if '8 CPU, and no' in line and '4 GPU' in line:\n"
        "        break\n"
        "probe.kill()\n"
        "limit.cancel()\n"
    )
    done = subprocess.run(
        [sys.executable, str(program)], capture_output=True, text=True, timeout=280, check=False
    )
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith('"')]
    assert lines, done.stderr[-2000:]
    assert "asks for 8 CPU, and no node has that (the largest has 2 CPU)" in lines[-1]
    assert "a placement group's bundle asks for 1 CPU and 4 GPU" in lines[-1]
