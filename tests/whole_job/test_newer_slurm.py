"""The main job and scancel on a Slurm that is not this machine's own. Opt-in, because it takes minutes:

env/setup_newer_slurm.sh /opt/rlprof/slurm
RLPROF_TESTS_SLURM=/opt/rlprof/slurm .venv/bin/python -m pytest tests/whole_job/test_newer_slurm.py
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from tests.sandbox import Sandbox
from tests.waits import wait_until
from tests.whole_job.jobs import DEMO, NEEDS, Job

SLURM = os.environ.get("RLPROF_TESTS_SLURM", "")
ASKED = {"RLPROF_WORKERS": "policy_worker", "RLPROF_OPTIONS": '{"t": "nvtx"}', "RLPROF_REPORT_SECONDS": "0"}
pytestmark = [
    *NEEDS,
    pytest.mark.timeout(600),
    pytest.mark.by_hand("RLPROF_TESTS_SLURM"),
]


@pytest.fixture(scope="module")
def newer() -> Iterator[Sandbox]:
    with Sandbox.up(nodes=2, slurm=SLURM) as sandbox:
        version = sandbox.run(["sinfo", "--version"]).stdout
        assert "24." in version or "25." in version, version
        yield sandbox


def test_every_window_comes_home(newer: Sandbox) -> None:
    job = Job.submit(newer, nodes=2, COMMAND=f"{DEMO} --steps 5", RLPROF_STEPS="2:4", **ASKED)
    state = job.wait()
    assert (state.state, state.exit_code) == ("COMPLETED", 0), job.say()
    assert list(job.states().values()) == ["ok", "ok"], job.say()
    assert job.leftovers() == []


def test_windows_that_had_ended_survive_scancel(newer: Sandbox) -> None:
    newer.heal()
    knobs = {**ASKED, "RLPROF_STEPS": "2:4,400", "RAY_LOG_SYNC_FREQUENCY": "0"}
    job = Job.submit(newer, nodes=2, COMMAND=f"{DEMO} --steps 500 --step-seconds 1", **knobs)
    log = job.run / "logs/driver.log"
    wait_until(
        lambda: log.exists() and "step   5 " in log.read_text(errors="replace"), 240, job.say, pause_s=0.5
    )
    newer.run(["scancel", str(job.id)])
    state = job.wait()
    assert state.state == "CANCELLED", job.say()
    assert sorted(job.states().values()) == ["missing", "missing", "ok", "ok"], job.say()
    assert job.leftovers() == []
