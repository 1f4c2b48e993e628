"""Which tests one run takes: RLPROF_TESTS names the tier.

- `quick`, `make test`: every unit, one job on the sandbox, one real trainer (TRL), one page in Chromium.
- `all`, CI and pytest by itself: what is not `long`; real trainers where RLPROF_TESTS_REQUIRE asks for them.
- `long`, `make test-all`: everything, which takes hours. Its own show in a second way what CI shows in one:
  another trainer's job of the same kind, another end of the same chain, what stock Ray does without us.
"""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path

import pytest

from tests import needs

QUICK, ALL, LONG = "quick", "all", "long"
TIERS = (QUICK, ALL, LONG)
_WHOLE = {"whole", "slurm", "lane", "trainers", "chromium"}
"""Marks of what `quick` leaves out, unless a test is marked `quick` too."""
_TRAINERS = Path(__file__).parent / "trainers"

left: Counter[str] = Counter()
"""The tier that would have run them -> number of tests that this run leaves out."""


def tier() -> str:
    """The tier of this run. Raises `pytest.UsageError` for a word that is none."""
    asked = os.environ.get("RLPROF_TESTS") or ALL
    if asked not in TIERS:
        raise pytest.UsageError(f"RLPROF_TESTS={asked!r} is no tier of tests: {', '.join(TIERS)}")
    return asked


def first_tier(marks: set[str], *, of_trainers: bool) -> str:
    """The smallest tier that takes a test with these marks."""
    if "long" in marks:
        return LONG
    return ALL if (marks & _WHOLE or of_trainers) and "quick" not in marks else QUICK


def select(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Keep the tests of this run's tier. Real trainers take 8 GB and some minutes to build, so that nobody
    has them who does not ask."""
    now = tier()
    trainers = now == QUICK or needs.required("trainers")
    kept, out = [], []
    left.clear()
    for item in items:
        of_trainers = _TRAINERS in item.path.parents
        first = first_tier({marker.name for marker in item.iter_markers()}, of_trainers=of_trainers)
        if TIERS.index(first) > TIERS.index(now):
            left[first] += 1
            out.append(item)
        elif of_trainers and not trainers:
            left["trainers"] += 1
            out.append(item)
        else:
            kept.append(item)
    if out:
        config.hook.pytest_deselected(items=out)
        items[:] = kept


def told() -> list[str]:
    """What this run left out, a line for each that would take it."""
    taken_by = {
        ALL: "RLPROF_TESTS=all make test",
        LONG: "make test-all",
        "trainers": "RLPROF_TESTS_REQUIRE=trainers",
    }
    return [f"{left[name]} left to `{command}`" for name, command in taken_by.items() if left[name]]
