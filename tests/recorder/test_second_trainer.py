"""A second trainer of the same processes counts its steps from 1 again: its slow rank is found as well."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")

from rlprof_ops.recorder.detect.anomaly import SLOW_RANK
from tests.recorder.recorded_command import recorded
from tests.recorder.second_trainer import FIRST_STEPS, SLOW
from tests.waits import wait_until

PROGRAM = Path(__file__).with_name("second_trainer.py")


@pytest.mark.torch
def test_the_slow_rank_of_a_second_trainer_is_named_before_it_has_as_many_steps(tmp_path: Path) -> None:
    with recorded(tmp_path, [sys.executable, str(PROGRAM), str(tmp_path)]) as ranks:
        wait_until(lambda: ranks.found, 120, ranks.said)
        [finding] = ranks.found
    assert (finding["kind"], finding["worker"], finding["ranks"]) == (SLOW_RANK, "trainer", [SLOW])
    assert 1 <= finding["evidence"]["since_step"] <= 3 and finding["step"] < FIRST_STEPS
