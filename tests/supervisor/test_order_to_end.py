"""An order to end around the death of a supervisor: whoever is told drains, whatever died just then. The manifest
is made, the window that had ended is home, no process is left, and the exit code is the driver's or 143.
"""

from __future__ import annotations

import json
import os
import random
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.supervisor.one_node import OneNode

TIMES = 12  # `make test-faults` and RLPROF_FAULTS=all: 60


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
@pytest.mark.parametrize("seed", range(TIMES if os.environ.get("RLPROF_FAULTS") != "all" else 60))
def test_an_order_to_end_within_600_ms_of_a_supervisors_death(start, seed: int):
    rng = random.Random(seed)
    node = start(rng.choice([0, 5]))
    node.wait_for("trained")
    time.sleep(rng.uniform(0, 0.3))
    node.kill_supervisor()
    time.sleep(rng.uniform(0, 0.6))
    node.process.send_signal(signal.SIGTERM)
    check(node, 143)
