"""A job that cannot start ends within a minute, with one message that names the cause."""

from __future__ import annotations

import sys

import pytest
from tests.whole_job.jobs import ASKED, DEMO, Job

pytestmark = [pytest.mark.slurm, pytest.mark.ray, pytest.mark.timeout(500)]
LIMIT_S = 150  # a minute, on a machine that has much to do


@pytest.mark.parametrize(
    ("knobs", "code", "message"),
    [
        (
            {"RAY_LOG_SYNC_FREQUENCY": "abc"},
            2,
            "RAY_LOG_SYNC_FREQUENCY='abc': expected a number from 0 to 86400",
        ),
        ({"RLPROF_VENV": "/no/such/venv"}, 2, "RLPROF_VENV=/no/such/venv: no bin/python there"),
        ({"RLPROF_STEPS": "0:10"}, 2, "steps are counted from 1"),
        ({"BASE_LOG_DIR": "/proc/nowhere"}, 1, "BASE_LOG_DIR: the run folder /proc/nowhere/"),
        ({"SETUP_COMMAND": "exit 9"}, 1, "SETUP_COMMAND ended with exit code 9"),
    ],
)
def test_a_bad_setting_is_named(slurm, knobs, code, message):
    job = Job.submit(slurm, COMMAND=DEMO, **(ASKED | knobs))
    state = job.wait(timeout=LIMIT_S)

    assert (state.state, state.exit_code) == ("FAILED", code), job.output
    assert message in job.output
    assert "Traceback" not in job.output
    assert job.leftovers() == []


def test_a_port_in_use_is_named(slurm):
    listener = slurm.popen("n1", [sys.executable, "-m", "http.server", "7777"], stdout=-3, stderr=-3)
    try:
        job = Job.submit(slurm, COMMAND=DEMO, PORT="7777", **ASKED)
        state = job.wait(timeout=LIMIT_S)
    finally:
        listener.terminate()
        listener.wait(timeout=60)

    assert (state.state, state.exit_code) == ("FAILED", 2), job.output
    assert "node n1: port in use: PORT=7777" in job.output


def test_a_node_without_python_is_named(slurm):
    for node in ("n1", "n2"):
        python = slurm.tmp(node) / "some-python"
        python.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
        python.chmod(0o755)
    job = Job.submit(slurm, COMMAND=DEMO, RLPROF_VENV="", RLPROF_PYTHON="/tmp/some-python", **ASKED)
    state = job.wait(timeout=LIMIT_S)

    assert state.state == "FAILED" and state.exit_code != 0, job.output
    assert "node n3: no Python: '/tmp/some-python' is not there." in job.output
