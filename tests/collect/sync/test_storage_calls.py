"""Calls on shared storage in steady state, counted by strace, against the budget of tests/bench/metadata."""

import pytest
from tests.bench import metadata
from tests.needs import need


@pytest.mark.timeout(180)
def test_shared_storage_is_asked_within_the_budget(tmp_path):
    """With a pass every 2 s, fifteen times as many as by default; the watched job has 512 nodes."""
    need("strace")
    seconds = 6
    found = metadata.measure(tmp_path.resolve(), 2, seconds, 2)
    assert metadata.over_budget(found, 2, seconds) == []
