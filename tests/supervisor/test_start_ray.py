"""A node whose Ray gives up at the start tries again; one that never comes up ends with Ray's own words."""

from __future__ import annotations

import asyncio
import json
import re
import secrets
import shutil
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest
from tests.supervisor.nodes import node_of, place_of

from rlprof_ops.errors import RlprofError
from rlprof_ops.request import CaptureSpec, ProfileRequest, request_from_dict
from rlprof_ops.runtime.process.worker_identity import OF_ONE_PROCESS
from rlprof_ops.supervisor import head
from rlprof_ops.supervisor.head import Head
from rlprof_ops.supervisor.node import node_ray
from rlprof_ops.supervisor.node.node import Node

# Stands for `ray start`: fails until a file counts enough tries, then says what Ray says and stays.
RAY = """
import sys, time, pathlib
tries = pathlib.Path(sys.argv[1])
tries.write_text(tries.read_text() + "x" if tries.exists() else "x")
if len(tries.read_text()) < int(sys.argv[2]):
    sys.exit("The current node timed out during startup.")
print("Ray runtime started.", flush=True)
time.sleep(600)
"""


def node(tmp_path: Path, **knobs: str) -> Node:
    return node_of(place_of(tmp_path, "n0", "n1", number=1), **knobs)


def start(
    one: Node,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    comes_up_at: int,
    program: str = RAY,
    seconds: float = 120,
) -> str:
    """Start the stand-in and give back what it was told, one x a try."""
    tries = tmp_path / "tries"
    argv = [sys.executable, "-c", program, str(tries), str(comes_up_at)]
    monkeypatch.setattr(node_ray, "start_argv", lambda *_: argv)

    async def scene() -> None:
        try:
            await one.ray.find_or_start(asyncio.get_running_loop().time() + seconds)
        finally:
            await one.ray.stop()

    try:
        asyncio.run(scene())
    finally:
        done = tries.read_text()
    return done


def test_it_tries_again(tmp_path, monkeypatch, capsys):
    assert start(node(tmp_path), monkeypatch, tmp_path, comes_up_at=3) == "xxx"
    assert "node n1: trying again, 1 more" in capsys.readouterr().err


def test_a_start_that_hangs_leaves_time_for_another(tmp_path, monkeypatch, capsys):
    hangs = RAY.replace("sys.exit(", "time.sleep(600), (")
    told = start(node(tmp_path), monkeypatch, tmp_path, comes_up_at=2, program=hangs, seconds=20)
    assert told in ("xx", "xxx")  # a busy machine may take the second try to begin
    late = r"node n1: `ray start` did not come up in (9|10) s \(RLPROF_READY_SECONDS\)"
    assert re.search(late, capsys.readouterr().err)


def test_it_gives_up_with_rays_words(tmp_path, monkeypatch):
    one = node(tmp_path, RLPROF_RAY_START_TRIES="2")
    with pytest.raises(
        RlprofError, match="node n1: `ray start` ended; its last words:\nThe current node timed out"
    ):
        start(one, monkeypatch, tmp_path, comes_up_at=9)
    assert (tmp_path / "tries").read_text() == "xx"


ENDS_AS_IT_BINDS = """
import os, sys
def end(event, _):
    if event == "socket.bind" and os.path.getsize(LOG):
        os._exit(3)
if any(word.endswith("dashboard.py") for word in sys.orig_argv):
    sys.addaudithook(end)
"""
"""A dashboard that ends as it opens a port, when it has begun its log: the test says which that is."""


@pytest.mark.ray
def test_a_real_rays_error_comes_before_the_end_of_its_dashboards_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Ray prints twenty lines of the dashboard's own log after it, in which nothing is wrong."""
    one, short = node(tmp_path, RLPROF_RAY_START_TRIES="1"), tempfile.mkdtemp(dir="/tmp")  # holds sockets
    Path(one.environment()["RAY_AUTH_TOKEN_PATH"]).write_text(secrets.token_hex(32))
    (tmp_path / "site").mkdir()
    log = f"{short}/session_latest/logs/dashboard.log"
    (tmp_path / "site" / "sitecustomize.py").write_text(ENDS_AS_IT_BINDS.replace("LOG", repr(log)))
    argv = ["env", f"PYTHONPATH={tmp_path / 'site'}", sys.executable, "-m", "ray.scripts.scripts", "start",
            "--head", "--block", "--port=0", "--dashboard-port=0", "--include-dashboard=true",
            f"--temp-dir={short}"]  # fmt: skip
    monkeypatch.setattr(node_ray, "start_argv", lambda *_: argv)

    async def scene() -> None:
        try:
            await one.ray.find_or_start(asyncio.get_running_loop().time() + 240)
        finally:
            await one.ray.stop()

    try:
        with pytest.raises(RlprofError) as raised:
            asyncio.run(scene())
    finally:
        shutil.rmtree(short, ignore_errors=True)
    first, error, *_ = str(raised.value).splitlines()
    assert first == "node n1: `ray start` ended; its last words:"
    assert "ERROR" in error and "Failed to start the dashboard" in error
    assert "INFO head.py" in str(raised.value)


def test_a_job_that_a_profiled_process_submits_is_nobody_yet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    for name in ("RLPROF_WORKER", "RLPROF_RANK", "RLPROF_NSYS_SESSION", "RLPROF_SESSION_PID", "RLPROF_LEADS"):
        monkeypatch.setenv(name, "1")
    monkeypatch.setenv("WANDB_MODE", "offline")
    env = node(tmp_path).environment()
    assert env["WANDB_MODE"] == "offline"
    assert not {name for name in env if name in OF_ONE_PROCESS or name == "RLPROF_LEADS"}


def head_node(tmp_path: Path, **knobs: str) -> Head:
    return Head(node_of(place_of(tmp_path, "n0"), **knobs))


def test_a_request_of_the_trainers_own_stands_in_run_json(tmp_path: Path):
    one = head_node(tmp_path)
    asked = ProfileRequest((CaptureSpec(workers=("ActorGroup",)),))
    one.take_request(asked)
    one.node.journal.writer.flush(60)
    run_json = json.loads(one.node.place.run.run_json.read_text())
    assert request_from_dict(run_json["request"], origin="run.json") == asked
    secret = replace(
        asked.captures[0], env={"HF_TOKEN": "q7Zk1Vw9Xr2Lm4Tp"}, options={"e": "API_KEY=q7Zk1Vw9"}
    )
    one.take_request(ProfileRequest((secret,)))
    one.node.journal.writer.flush(60)
    assert "q7Zk1Vw9" not in one.node.place.run.run_json.read_text()


@pytest.mark.parametrize("knobs", [{}, {"RLPROF_REQUIRE_RAY_AUTH": "1"}, {"RAY_AUTH_MODE": "disabled"}])
def test_a_ray_without_authentication_is_said_or_refused(tmp_path, monkeypatch, capsys, knobs):
    monkeypatch.setattr(head, "installed_version", {"ray": "2.51.0"}.get)
    one = head_node(tmp_path, **knobs)
    if "RLPROF_REQUIRE_RAY_AUTH" in knobs:
        with pytest.raises(RlprofError, match=r"RLPROF_REQUIRE_RAY_AUTH=1: Ray 2\.51\.0 runs without auth"):
            one.check_authentication()
        return
    one.check_authentication()
    said = "Ray 2.51.0 runs without authentication" in capsys.readouterr().err
    assert said == (not knobs)  # who has turned it off knows


@pytest.mark.parametrize("asked", [True, False])
def test_ray_does_not_kill_nsys_in_its_export(tmp_path, monkeypatch, capsys, asked):
    monkeypatch.setenv("RAY_process_group_cleanup_enabled", "1")
    one = head_node(tmp_path, RLPROF_ON_DEMAND="nsight" if asked else "0")
    one.say_what_is_off()
    assert ("would kill nsys with its worker" in capsys.readouterr().err) == asked
    assert one.node.environment()["RAY_process_group_cleanup_enabled"] == ("0" if asked else "1")
