"""A job that starts again after a requeue: what earlier attempts brought home is asked of nobody again."""

from __future__ import annotations

import json
import os
import shlex
import sys
from pathlib import Path

import pytest
from tests.supervisor.one_node import OneNode

from rlprof_ops.collect.harvest.manifest import CaptureResult, Manifest
from rlprof_ops.job.knobs import Settings
from rlprof_ops.request import ProfileRequest, request_from_json
from rlprof_ops.submit.missing_captures import asked_now
from rlprof_ops.supervisor import salvage
from rlprof_ops.supervisor.salvage import record_bad_start

ASKED = {"RLPROF_STEPS": "2, 5", "RLPROF_WORKERS": "w", "RLPROF_BACKEND": "torch"}
NEMO_RLS = {"NRL_NSYS_PROFILE_STEP_RANGE": "2:3", "NRL_NSYS_WORKER_PATTERNS": "w"}
TELL = "import json, os, sys; json.dump(dict(os.environ), open(sys.argv[1], 'w'))"


def ended(base: Path, home: list[int], **record: object) -> str:
    """The first attempt of a job, whose steps `home` are whole, and what its run.json says; its name."""
    job = f"local-{os.getpid()}-1"
    before = base / f"{job}-logs"
    before.mkdir()
    rows = tuple(
        CaptureResult(
            f"torch/w/{step}", "torch", "w", 0, step, step + 1, None, "ok" if step in home else "missing"
        )
        for step in (2, 5)
    )
    (before / "manifest.json").write_text("".join(Manifest("1", rows, ()).lines()))
    (before / "run.json").write_text(json.dumps(record))
    return job


@pytest.mark.parametrize(("home", "left"), [([2], ["5"]), ([2, 5], [])])
def test_what_is_home_is_not_asked_again(home: list[int], left: list[str], tmp_path: Path) -> None:
    first = ended(tmp_path, home)
    told = tmp_path / "told.json"
    command = shlex.join([sys.executable, "-c", TELL, str(told)])
    node = OneNode.start(
        tmp_path, job=f"{first}.r1", COMMAND=command, RLPROF_EARLIER_ATTEMPTS="0", RLPROF_REQUEST_JSON="",
        **ASKED, **NEMO_RLS,
    )  # fmt: skip
    try:
        code = node.code()
        env = json.loads(told.read_text())
        assert [str(spec.steps) for spec in request_from_json(env["RLPROF_REQUEST_JSON"]).captures] == left
        assert str(request_from_json(env["RLPROF_WHOLE_REQUEST_JSON"]).captures[0].steps) == "2,5"
        assert not {"RLPROF_EARLIER_ATTEMPTS", *NEMO_RLS} & env.keys()
        assert [capture.start for capture in node.manifest().captures] == [int(step) for step in left]
        assert not node.manifest().running
        record = json.loads((node.run.path / "run.json").read_text())
        assert f"{len(home)} of 2 captures home" in record["request_notes"][-1]
        assert code == 0
    finally:
        node.end()


WHOLE = {"captures": [{"backend": "torch", "workers": ["w"], "steps": "2, 5"}]}
BY_TRAINER = {"request": WHOLE, "request_by": "trainer"}


def test_run_json_says_that_the_trainer_told_the_request(tmp_path: Path) -> None:
    tell = "import sys; from rlprof_ops.runtime.step_clock import *; sys.exit(not tell_request(sys.argv[1]))"
    command = shlex.join([sys.executable, "-c", tell, json.dumps(WHOLE)])
    node = OneNode.start(tmp_path, COMMAND=command, RLPROF_REQUEST_JSON="")
    try:
        assert node.code() == 0, node.output()
        record = json.loads((node.run.path / "run.json").read_text())
        assert record["request"]["captures"][0]["steps"] == "2,5" and record["request_by"] == "trainer"
    finally:
        node.end()


def test_a_secret_of_the_request_reaches_the_driver_and_no_file_of_the_run(tmp_path: Path) -> None:
    told, secret = tmp_path / "told.json", "q7Zk1Vw9Xr2Lm4Tp"
    capture = {
        "backend": "torch",
        "workers": ["w", "controller"],
        "steps": "2",
        "env": {"HF_TOKEN": secret, "NCCL_DEBUG": "INFO"},
    }
    node = OneNode.start(
        tmp_path,
        COMMAND=shlex.join([sys.executable, "-c", TELL, str(told)]),
        RLPROF_REQUEST_JSON=json.dumps({"captures": [capture]}),
    )
    try:
        assert node.code() == 0, node.output()
        assert json.loads(told.read_text())["HF_TOKEN"] == secret
        record = json.loads((node.run.path / "run.json").read_text())
        assert record["request"]["captures"][0]["env"] == {"HF_TOKEN": "***", "NCCL_DEBUG": "INFO"}
        files = [path for path in node.run.path.rglob("*") if path.is_file()]
        assert not [path for path in files if secret.encode() in path.read_bytes()]
    finally:
        node.end()


def now(base: Path, job: str, **env: str) -> ProfileRequest:
    return asked_now(f"{job}.r1", base / f"{job}.r1-logs", {"RLPROF_EARLIER_ATTEMPTS": "0", **env})


def test_a_request_of_the_trainers_own_configuration_goes_on_too(tmp_path: Path) -> None:
    job = ended(tmp_path, [2], **BY_TRAINER)
    left = now(tmp_path, job)
    assert [str(spec.steps) for spec in left.captures] == ["5"]
    assert "1 of 2 captures home, which are not taken again" in left.notes[-1]
    own = now(tmp_path, job, RLPROF_STEPS="5, 7", RLPROF_WORKERS="w", RLPROF_BACKEND="torch")
    assert [str(spec.steps) for spec in own.captures] == ["5"], "what the job itself asks counts"


@pytest.mark.parametrize(
    "record",
    [
        {"request": WHOLE},
        {"request_by": "trainer"},
        {**BY_TRAINER, "request": {"captures": 7}},
        {**BY_TRAINER, "request": {"captures": [{**WHOLE["captures"][0], "env": {"HF_TOKEN": "***"}}]}},
    ],
)
def test_a_request_that_was_the_jobs_or_cannot_be_read_is_not_the_trainers(
    record: dict[str, object], tmp_path: Path
) -> None:
    """A file of the request may have been emptied since, and a trainer tells its own again. So it does where
    a worker would start with *** for a secret.
    """
    assert not now(tmp_path, ended(tmp_path, [2], **record)).captures


@pytest.mark.parametrize(
    ("home", "record", "left"),
    [([2], BY_TRAINER, ["5"]), ([2, 5], BY_TRAINER, []), ([], {}, None)],
    ids=["some", "nothing", "never told"],
)
def test_the_driver_is_told_what_its_own_configuration_asks_still(
    home: list[int], record: dict[str, object], left: list[str] | None, tmp_path: Path
) -> None:
    """Where no attempt heard of it, the driver has no request and tells its own."""
    first, told = ended(tmp_path, home, **record), tmp_path / "told.json"
    command = shlex.join([sys.executable, "-c", TELL, str(told)])
    node = OneNode.start(
        tmp_path, job=f"{first}.r1", COMMAND=command, RLPROF_EARLIER_ATTEMPTS="0", RLPROF_REQUEST_JSON=""
    )
    try:
        assert node.code() == 0, node.output()
        env = json.loads(told.read_text())
        asked, whole = env.get("RLPROF_REQUEST_JSON"), env.get("RLPROF_WHOLE_REQUEST_JSON")
        if left is None:
            assert not asked and not whole
            return
        assert [str(spec.steps) for spec in request_from_json(asked).captures] == left
        assert [str(spec.steps) for spec in request_from_json(whole).captures] == ["2,5"]
        assert [str(capture.start) for capture in node.manifest().captures] == left
        assert f"{len(home)} of 2 captures home" in node.output() + "".join(node.manifest().notes)
    finally:
        node.end()


def test_a_start_that_fails_says_what_is_missing_still(tmp_path: Path) -> None:
    job = ended(tmp_path, [2], **BY_TRAINER)
    run = tmp_path / f"{job}.r1-logs"
    (run / "control").mkdir(parents=True)
    env = {"RLPROF_JOB": f"{job}.r1", "RLPROF_NODES": "n1", "RLPROF_RUN_DIR": str(run)}
    env["RLPROF_EARLIER_ATTEMPTS"] = "0"
    record_bad_start(env, Settings.load(env), run)
    record = json.loads((run / "run.json").read_text())
    assert [capture["steps"] for capture in record["request"]["captures"]] == ["5"]
    assert "1 of 2 captures home" in record["request_notes"][-1]


@pytest.mark.parametrize("code", ["143", "140", "2"])
def test_nothing_is_said_to_be_lost_of_a_job_that_never_began(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], code: str
) -> None:
    run = tmp_path / "7-logs"
    (run / "control").mkdir(parents=True)
    env = {"RLPROF_JOB": "7", "RLPROF_NODES": "n1", "RLPROF_RUN_DIR": str(run), "RLPROF_STEP_CODE": code}
    env |= {"SLURMD_NODENAME": "n1", "RLPROF_NODE_ROOT": str(tmp_path)}
    salvage.main(env, never_began=True)
    assert salvage.main(env) == 0 and "went with it" not in capsys.readouterr().err
