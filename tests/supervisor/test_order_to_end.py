"""An order to end around the death of a supervisor: whoever is told drains, whatever died just then. The
manifest is made, the window that had ended is home, no process is left, and the exit code is the driver's or
143.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import re
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests import tiers
from tests.hung import hung
from tests.needs import need
from tests.supervisor.one_node import OneNode, children
from tests.waits import wait_until

from rlprof_ops.collect.harvest.run_harvest import harvest

pytestmark = pytest.mark.whole

TIMES = 60 if tiers.tier() == tiers.LONG else 3


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., OneNode]]:
    begun: list[OneNode] = []

    def begin(code: int = 0, **knobs: str) -> OneNode:
        begun.append(OneNode.start(tmp_path / f"job{len(begun)}", code, **knobs))
        return begun[-1]

    yield begin
    for each in begun:
        each.end()


def check(node: OneNode, code: int, cause: str = "signal") -> None:
    """Its end is whole."""
    assert node.code() == code, node.output()
    end = json.loads(node.run.run_json.read_text())["end"]
    assert end["cause"] == cause, (end, node.output())
    states = {(each.worker, each.rank, each.start): each.state for each in node.manifest().captures}
    assert states == {("w", 0, 2): "ok"}, (states, node.output())
    assert not node.left(), node.output()
    assert not node.folder.exists(), (list(node.folder.rglob("*")), node.output())


@pytest.mark.timeout(300)
@pytest.mark.parametrize("seed", range(TIMES))
def test_an_order_to_end_within_600_ms_of_a_supervisors_death(start, seed: int):
    rng = random.Random(seed)
    node = start(rng.choice([0, 5]))
    node.wait_for("trained")
    time.sleep(rng.uniform(0, 0.3))
    node.kill_supervisor()
    time.sleep(rng.uniform(0, 0.6))
    node.process.send_signal(signal.SIGTERM)
    check(node, 143)


@pytest.mark.timeout(300)
def test_an_order_that_reaches_rays_head_before_its_supervisor_is_no_loss_of_a_node(start):
    # The order comes within the second in which it is waited for, unless the machine is busy.
    for _ in range(3):
        node = start(5)
        node.wait_for("trained")
        [head] = [each for each in node.left() if "ray_stand_in.py" in " ".join(each.argv)]
        os.kill(head.pid, signal.SIGTERM)
        time.sleep(0.3)
        node.process.send_signal(signal.SIGTERM)
        if node.code() == 143:
            break
    check(node, 143)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("seed", range(-(-TIMES // 3)))
def test_a_supervisor_that_is_killed_in_the_start_or_the_drain_is_followed_by_one_that_goes_on(
    start, seed: int
):
    rng = random.Random(seed)
    node = start()
    for _ in range(rng.randint(1, 2)):
        time.sleep(rng.uniform(0, 3))
        node.kill_supervisor()
    node.wait_for("trained")
    (node.base / "go").touch()
    time.sleep(rng.uniform(0, 2))
    with contextlib.suppress(pytest.fail.Exception, ProcessLookupError):  # it may have ended meanwhile
        node.kill_supervisor()
    check(node, 0, "driver_exit")


@pytest.mark.timeout(300)
def test_what_a_supervisor_was_killed_in_writing_keeps_no_node_folder(start):
    node = start()
    node.wait_for("trained")
    (node.folder / "keep").mkdir(exist_ok=True)
    (node.folder / "keep/.run.json.7.7").touch()
    node.kill_supervisor()
    node.process.send_signal(signal.SIGTERM)
    check(node, 143)


@pytest.mark.timeout(300)
def test_a_supervisor_killed_when_the_driver_has_begun_is_followed_by_one_of_a_cluster_that_is_up(start):
    node = start()
    both = lambda: len(children(node.process.pid)) == 2  # noqa: E731 - the supervisor and the driver
    wait_until(both, 60, node.output, pause_s=0.001)
    node.kill_supervisor()
    node.wait_for("trained")
    node.process.send_signal(signal.SIGTERM)
    check(node, 143)
    assert "before the cluster was up" not in node.output()


@pytest.mark.timeout(300)
@pytest.mark.parametrize("seed", range(-(-TIMES // 3)))
def test_an_order_in_the_start_is_no_failed_start(start, seed: int):
    node = start()
    time.sleep(random.Random(seed).uniform(0, 3))
    node.process.send_signal(signal.SIGTERM)
    assert node.code() in (143, -signal.SIGTERM), node.output()  # of a Python that has not even begun
    assert not node.left() and not node.folder.exists(), node.output()
    if node.run.run_json.exists():
        assert json.loads(node.run.run_json.read_text())["end"]["cause"] == "signal"
        assert node.manifest() is not None


@pytest.mark.timeout(300)
def test_a_node_whose_keeper_is_killed_ends_in_order(start):
    node = start()
    node.wait_for("trained")
    node.process.kill()
    wait_until(lambda: not node.left(), 60, node.output)
    assert json.loads(node.run.run_json.read_text())["end"]["cause"] == "signal", node.output()
    assert [each.state for each in node.manifest().captures] == ["ok"], node.output()
    assert not node.folder.exists(), "its token would stay there"


@pytest.mark.timeout(300)
@pytest.mark.parametrize("seed", range(-(-TIMES // 6)))
def test_an_order_around_a_death_is_heard_also_where_the_storage_hangs(start, seed: int):
    need("fuse")
    rng = random.Random(seed)
    node = start(RLPROF_DRAIN_SECONDS="8")
    node.wait_for("trained")
    time.sleep(2)  # the sync has brought home what had ended, or not
    with hung(node.run.path):
        node.kill_supervisor()
        time.sleep(rng.uniform(0, 0.6))
        node.process.send_signal(signal.SIGTERM)
        assert node.code(120) == 143
    wait_until(lambda: not node.left(), 60, lambda: [str(each) for each in node.left()])
    assert "told to end: signal" in (node.base / "output").read_text()
    [command] = re.findall(r"on node n1: (env .*supervisor.salvage)", (node.base / "output").read_text())
    done = subprocess.run(
        ["sh", "-c", command], capture_output=True, text=True, timeout=120, check=False, env=node.env
    )
    assert done.returncode == 0, done.stdout + done.stderr
    harvest(node.run.path)
    check(node, 143)


@pytest.mark.timeout(300)
def test_an_order_before_the_storage_has_answered_leaves_no_node_folder(start):
    need("fuse")
    node = start()
    with hung(node.run.path):
        wait_until(node.folder.exists, 60, node.output)
        time.sleep(1)
        node.process.send_signal(signal.SIGTERM)
        assert node.code(60) == 143
        output = (node.base / "output").read_text()
    assert "before the storage" in output
    assert not node.left() and not node.folder.exists(), list(node.folder.rglob("*"))
