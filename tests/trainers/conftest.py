"""Real trainers are run where they are asked for: their environments take 8 GB and some minutes to build."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests import needs

HERE = Path(__file__).parent
BARE = os.environ.get("RLPROF_TRAINERS_BARE") == "1"


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect what nobody required: all of it in a plain `make test`, in CI the long runs without us.

    RLPROF_TESTS_REQUIRE=trainers (or all) runs them; RLPROF_TRAINERS_BARE=1 also each trainer by itself.
    """
    mine = [item for item in items if HERE in item.path.parents]
    wanted = needs.required("trainers")
    left_out = {item for item in mine if not wanted or (item.get_closest_marker("long") and not BARE)}
    if left_out:
        config.hook.pytest_deselected(items=sorted(left_out, key=lambda item: item.nodeid))
        items[:] = [item for item in items if item not in left_out]
