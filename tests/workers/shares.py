"""Which tests may run beside which, when pytest has several workers (`-n`).

What uses the machine is three shares, each taken by one worker as a whole, test after test in the order of
a run without workers: what runs in a Slurm sandbox, real trainers, and whatever else uses this machine
itself (a Ray cluster, nsys). The sandbox begins first, being the longest, with several jobs at once; beside
it the environments of real trainers are built and what needs one core alone is run; the other two come
last, when the sandbox has one job at a time. With a third worker each of these begins at once, and files that
are nobody's fill what is left. In the quick tier, with one job on the sandbox, this machine's share is the
longest: it begins first, beside everything else. A mark `share(name)` overrules what is here.
Every other file is a share of its own, so that what a module's fixture makes is made once.
"""

from __future__ import annotations

import os
from collections.abc import Collection

import pytest

from tests import tiers

SANDBOX = "sandbox"
MACHINE = "machine"
ENVIRONMENTS = "environments"
TRAINERS = "trainers"
_FIRST = (SANDBOX, ENVIRONMENTS)
_LAST = (TRAINERS, MACHINE)
_QUICK = (MACHINE, SANDBOX, ENVIRONMENTS, TRAINERS)
_OF_THREE = (SANDBOX, MACHINE, ENVIRONMENTS, TRAINERS)
_SANDBOX_MARKS = {"slurm", "lane"}
_SANDBOX_FIXTURES = {"slurm", "slurm_sandbox", "lanes"}
_MACHINE_MARKS = {"ray", "nsys", "timed"}
_MADE_ONCE = {"wheel": "wheel", "chromium": "browser", "dumps": "dumps"}
"""Name of a fixture or a mark -> the share of all tests that have it, in whatever file they are."""


def named(marks: Collection[str], fixtures: Collection[str]) -> str:
    """The named share of a test; empty when it goes with its file."""
    if _SANDBOX_MARKS & set(marks) or _SANDBOX_FIXTURES & set(fixtures):
        return SANDBOX
    if TRAINERS in marks:
        return TRAINERS
    if _MACHINE_MARKS & set(marks):
        return MACHINE
    return next((name for word, name in _MADE_ONCE.items() if word in marks or word in fixtures), "")


def share(item: pytest.Item) -> str:
    """What is dealt out as one: the named share of a test, else its file."""
    if asked := item.get_closest_marker("share"):
        return str(asked.args[0])
    marks = [marker.name for marker in item.iter_markers()]
    return named(marks, getattr(item, "fixturenames", ())) or item.nodeid.partition("::")[0]


def rank(item: pytest.Item) -> int:
    """The order in which shares begin; those of one rank as they are."""
    first, last = order(tiers.tier(), int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1")))
    name = share(item)
    if name in first:
        return first.index(name)
    return len(first) + (1 + last.index(name) if name in last else 0)


def order(tier: str, workers: int) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The named shares that begin before all files, and those that begin after them."""
    if tier == tiers.QUICK:
        return _QUICK, ()
    return (_OF_THREE, ()) if workers > 2 else (_FIRST, _LAST)
