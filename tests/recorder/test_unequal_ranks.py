"""Real gloo ranks that meet in collectives inside a phase: the recorder names the one that they wait for."""

from __future__ import annotations

import re
import sys
import time
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

pytest.importorskip("torch")

from rlprof_ops.recorder.detect.anomaly import SLOW_RANK
from rlprof_ops.runtime.on_demand import arrivals
from tests.recorder.recorded_command import RecordedCommand, recorded
from tests.recorder.unequal_ranks import RANKS
from tests.waits import wait_until

PROGRAM = Path(__file__).with_name("unequal_ranks.py")
SECONDS = 420  # three looks a minute apart, on a machine that has much to do
pytestmark = [pytest.mark.torch, pytest.mark.long, pytest.mark.timeout(900)]


def job(folder: Path, slow: int) -> AbstractContextManager[RecordedCommand]:
    """A recorder beside the ranks, of which `slow` is slow; none for -1."""
    return recorded(folder, [sys.executable, str(PROGRAM), str(folder), str(slow)])


def looks(command: RecordedCommand) -> list[arrivals.Arrivals]:
    found = (arrivals.read(path) for path in (command.node / "marks").glob("*.arrivals"))
    return [each for each in found if each is not None]


def test_the_rank_that_the_others_wait_for_is_named(tmp_path: Path) -> None:
    began = time.monotonic()
    with job(tmp_path, 2) as ranks:
        wait_until(lambda: ranks.found, SECONDS, ranks.said)
        [finding] = ranks.found
        print(f"after {time.monotonic() - began:.0f} s: {finding['text']}")
        assert (finding["kind"], finding["worker"], finding["ranks"]) == (SLOW_RANK, "policy_worker", [2])
        said = (
            r"policy_worker rank 2 is slow since step \d+: it comes last to the collectives of default_pg in"
            r" train, and the others wait [\d.]+ ms of a step of [\d.]+ ms"
        )
        assert re.fullmatch(said, finding["text"]), finding["text"]
        assert 0.06 < finding["evidence"]["waited_s"] < 0.2, "of 6 times 20 ms"


def test_equal_ranks_of_which_one_writes_the_log_are_not(tmp_path: Path) -> None:
    with job(tmp_path, -1) as ranks:
        wait_until(lambda: len(looks(ranks)) == RANKS, SECONDS, ranks.said)
        since = min(look.t_ns for look in looks(ranks)) + int(3.5 * arrivals.EVERY_S * 1e9)
        wait_until(lambda: min(look.t_ns for look in looks(ranks)) > since, SECONDS, ranks.said)
        assert not ranks.found
