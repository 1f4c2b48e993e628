"""The simulated job of tests/bench/scale with few nodes: what makes the table of docs/operators.md works."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.bench.scale.job import RANKS
from tests.bench.scale.run import cells, simulate
from tests.needs import need


@pytest.mark.timeout(400)
def test_every_step_reaches_every_node_and_every_report_comes_home(tmp_path: Path) -> None:
    need("mount")  # and namespaces of its own, for which it takes the same right
    nodes = 6
    found = simulate(tmp_path, nodes, steps=5, step_s=0.2, kib=4)
    assert found.reports == nodes * RANKS
    assert 0 < found.tell_ms < found.late_ms < 20_000 and found.drain_s < 100
    assert cells(found)[0] == str(nodes)
