"""The table of what is seen of each trainer says what its adapter does, and a test that is collected holds
each cell of it.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from rlprof_ops import trainers

CHECKOUT = Path(__file__).parents[2]
COLLECT_S = 250.0


@pytest.fixture(scope="module")
def table() -> Any:
    spec = importlib.util.spec_from_file_location("seen_table", CHECKOUT / "docs" / "seen_table.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_trainer_has_a_row_and_no_cell_is_held_that_its_adapter_has_not(table: Any) -> None:
    rows = table.held()
    assert set(rows) == set(trainers.builtin())
    assert {name: set(row["held"]) - table.features(name) for name, row in rows.items()} == {
        name: set() for name in rows
    }
    for row in rows.values():
        assert (CHECKOUT / "docs" / row["page"].partition("#")[0]).is_file()


def test_the_test_of_each_cell_is_collected(table: Any) -> None:
    wanted = {test for row in table.held().values() for test in row["held"].values()}
    files = sorted({test.partition("::")[0] for test in wanted})
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider", *files],
        cwd=CHECKOUT,
        env={**os.environ, "RLPROF_TESTS": "long", "RLPROF_TESTS_REQUIRE": "trainers"},
        capture_output=True,
        text=True,
        timeout=COLLECT_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    collected = {line for line in done.stdout.splitlines() if "::" in line}
    collected |= {test.partition("[")[0] for test in collected}
    assert wanted - collected == set()
