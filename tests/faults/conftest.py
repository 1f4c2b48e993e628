"""The lanes of the fault tests, and the table that `make test-faults` writes of them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults.lanes import Lanes
from tests.faults.table import TABLE
from tests.needs import need

TABLE_PATH = os.environ.get("RLPROF_FAULTS_TABLE")


@pytest.fixture(scope="session")
def lanes(request: pytest.FixtureRequest) -> Iterator[Lanes]:
    """What the selected tests marked `lane(work)` need done; begins with the first of them."""
    need("slurm")
    markers = [item.get_closest_marker("lane") for item in request.session.items]
    lanes = Lanes(marker.args[0] for marker in markers if marker is not None)
    yield lanes
    lanes.close()
    if TABLE_PATH:
        Path(TABLE_PATH).write_text(TABLE.text())
