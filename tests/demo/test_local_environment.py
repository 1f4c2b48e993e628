"""What the supervisor of a job of this machine alone is told; a program that writes it down stands for its
Python.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from rlprof_ops.demo.local_job import run_local
from rlprof_ops.errors import UsageError


@pytest.fixture
def told(tmp_path, monkeypatch):
    """A call gives the variables with which `run_local` starts the supervisor."""
    for name in [name for name in os.environ if name.startswith(("SLURM", "RLPROF_"))]:
        monkeypatch.delenv(name)
    python = tmp_path / "python"
    python.write_text(f"#!/bin/sh\nenv -0 > '{tmp_path}/told'\n")
    python.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(python))
    site = tmp_path / "site.env"
    lines = ("NCCL_IB_HCA=mlx5", "RLPROF_TRAINER=nemo_rl", "RLPROF_CONTAINER_RUNTIME=pyxis", "PORT=7000")
    site.write_text("\n".join([*lines, "RLPROF_HARVEST_JOB=1"]))
    monkeypatch.setenv("RLPROF_SITE_ENV", str(site))

    def call(**settings: str) -> dict[str, str]:
        assert run_local(tmp_path, {"COMMAND": "true", **settings}, print).exit_code == 0
        pairs = (line.partition("=") for line in (tmp_path / "told").read_text().split("\0"))
        return {name: value for name, _, value in pairs}

    return call


def test_what_site_and_trainer_say_reaches_it(told, monkeypatch):
    monkeypatch.setenv("RAY_event_stats", "true")
    env = told(PORT="7001")

    assert (env["NCCL_IB_HCA"], env["PORT"], env["COMMAND"]) == ("mlx5", "7001", "true")
    assert env["RAY_gcs_server_request_timeout_seconds"] == "120" and env["RAY_event_stats"] == "true"
    assert env["RLPROF_CONTAINER_RUNTIME"] == "none", "nothing leads into a container here"


@pytest.mark.parametrize("more", [{}, {"RLPROF_HARVEST_JOB": "1"}])
def test_its_head_harvests_whatever_the_knobs_say(told, more):
    """Nobody else is there to do it; the site's file asks for another job."""
    assert told(**more)["RLPROF_HARVEST_JOB"] == "0"


@pytest.mark.parametrize("name", ["RLPROF_VENV", "RLPROF_PYTHON"])
def test_the_python_that_a_knob_names_is_its_python(told, tmp_path: Path, monkeypatch, name):
    venv = tmp_path / "venv"
    (venv / "bin").mkdir(parents=True)
    (tmp_path / "python").rename(venv / "bin" / "python")
    value = venv if name == "RLPROF_VENV" else venv / "bin" / "python"

    env = told(**{name: str(value)})

    is_venv = name == "RLPROF_VENV"
    assert (env["PATH"].split(os.pathsep)[0] == str(venv / "bin")) == is_venv
    assert (env.get("VIRTUAL_ENV") == str(venv)) == is_venv


def test_what_python_means_to_the_program_is_left_to_the_shell(told):
    assert told()["PATH"] == os.environ["PATH"]


def test_a_file_that_cannot_be_read_leaves_no_run_folder(told, tmp_path: Path, monkeypatch):
    monkeypatch.setenv("RLPROF_SITE_ENV", "/none/site.env")
    with pytest.raises(UsageError, match=r"RLPROF_SITE_ENV=/none/site\.env: cannot be read"):
        told()
    assert not list(tmp_path.glob("*-logs"))
