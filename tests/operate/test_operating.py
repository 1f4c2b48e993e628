"""`ps`, `status`, `logs`, `attach`, `dashboard`, `stop`, `retry` against a fake Slurm and run folders
written by hand.
"""

from __future__ import annotations

import io
import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from rlprof_ops.errors import UsageError
from rlprof_ops.host.contained_dir import PinnedDir
from rlprof_ops.job.folders import RunFolder as RunPlace
from rlprof_ops.job.job_history import recall
from rlprof_ops.job.knobs import read_knobs
from rlprof_ops.job.run_folder import find, folder_of
from rlprof_ops.operate import job_logs
from rlprof_ops.operate.end_job import stop
from rlprof_ops.operate.follow import Lines, follow
from rlprof_ops.request import load_request
from rlprof_ops.slurm import client
from rlprof_ops.submit.resubmit import asked_again
from rlprof_ops.supervisor.head import write_attach_file
from tests.operate.conftest import REQUEST, RunFolder
from tests.operate.test_submit import run, sent

CLOSED = {"event": "closed", "steps": [3, 5], "size_bytes": 1, "path": "p", "partial": False}
OPEN = {"event": "opened", "steps": [7, 8]}


def status(capsys, job: str = "4711") -> dict[str, object]:
    capsys.readouterr()
    run("status", job, "--json")
    return json.loads(capsys.readouterr().out)


def test_what_scontrol_says_is_read_with_spaces_and_equals_signs(fake):
    fake.show(
        "4711",
        "FAILED",
        ExitCode="7:0",
        WorkDir="/a b/c=d",
        JobName="x JobState=RUNNING Restarts=9",
        Command="/x y/ray.sub",
    )
    job = client.show("4711.r2")
    assert job is not None
    assert (job.id, job.name, job.state, job.work_dir, job.exit_code) == (
        "4711",
        "x JobState=RUNNING Restarts=9",
        "FAILED",
        "/a b/c=d",
        7,
    )
    assert job.restarts == 0 and job.is_ours and job.ended


@pytest.mark.parametrize(("state", "said", "code"), [
    ("COMPLETED", "0:0", 0), ("FAILED", "7:0", 7), ("FAILED", "0:15", 143), ("CANCELLED", "0:0", 143), ("TIMEOUT", "0:0", 140),
    ("NODE_FAIL", "0:0", 1), ("RUNNING", "0:0", None),
])  # fmt: skip
def test_the_exit_code_is_a_shells_and_a_failure_is_never_0(fake, state, said, code):
    fake.show("4711", state, ExitCode=said)
    assert client.show("4711").exit_code == code


def test_a_jobs_way_from_the_queue_to_its_end(fake, run_folder, capsys):
    fake.show("4711", "PENDING", Reason="Priority")
    assert status(capsys)["state"] == "waiting"
    fake.show("4711", "RUNNING")
    assert status(capsys)["state"] == "starting"
    run_folder.record()
    (run_folder.path / "logs" / "head.log").write_text(
        "[rlprof +  1.00s n1] 1 of 2 nodes are up\n[rlprof +  2.00s n1] 2 of 2 nodes are up\n"
    )
    run_folder.worker(0, CLOSED, OPEN, last_step=7)
    view = status(capsys)
    assert (view["state"], view["nodes_up"], view["step"]) == ("running", 2, 7)
    assert view["captures"] == {"planned": 4, "done": 1, "open": 1, "failed": 0, "missing": 0}
    run_folder.record(cause="driver_exit", exit_code=7)
    assert status(capsys)["state"] == "ending"
    fake.show("4711", "FAILED", ExitCode="7:0")
    run_folder.manifest(("policy_worker", 0, 3, 5, "ok"), ("policy_worker", 0, 7, 8, "missing"))
    view = status(capsys)
    assert (view["state"], view["exit_code"], view["complete"]) == ("ended", 7, False)


@pytest.mark.parametrize(
    ("exit_code", "last", "code"), [(0, "ok", 0), (7, "ok", 1), (0, "missing", 3), (7, "missing", 3)]
)
def test_status_ends_as_documented(fake, run_folder, exit_code, last, code):
    run_folder.record(cause="driver_exit", exit_code=exit_code)
    run_folder.manifest(("policy_worker", 0, 3, 5, "ok"), ("policy_worker", 0, 7, 8, last))
    assert run("status", "4711") == code


@pytest.mark.parametrize(
    ("events", "code"), [((CLOSED, CLOSED | {"steps": [7, 8]}), 0), ((CLOSED, OPEN), 3), ((), 3)]
)
def test_of_a_job_that_nobody_harvested_the_workers_tell_what_is_missing(fake, run_folder, events, code):
    run_folder.record(cause="driver_exit", exit_code=0)
    run_folder.worker(0, *events, world_size=1)
    assert run("status", str(run_folder.path)) == code


def test_a_job_is_found_without_slurm_and_from_any_folder(fake, run_folder, monkeypatch, tmp_path, capsys):
    run_folder.record(cause="driver_exit", exit_code=0)
    monkeypatch.setenv("PATH", "/usr/bin:/bin" if not Path("/usr/bin/scontrol").exists() else "/nowhere")
    monkeypatch.chdir("/")
    assert run("status", str(run_folder.path)) == 0
    assert run("status", "4711") == 2
    assert "no run folder for job 4711" in capsys.readouterr().err
    site = tmp_path / "site.env"
    site.write_text(f"BASE_LOG_DIR={run_folder.path.parent}\n")
    monkeypatch.setenv("RLPROF_SITE_ENV", str(site))
    assert run("status", "4711") == 0
    capsys.readouterr()
    assert run("harvest", "4711", "--json") == 3
    assert json.loads(capsys.readouterr().out)["job"] == "4711"
    for words in (("report", "4711"), ("timeline", "4711"), ("diff", "4711", "4711")):
        assert run(*words) == 2
        assert str(run_folder.path) in capsys.readouterr().err  # found, and nothing to read in it
    assert run("report", "4712") == 2
    assert "no run folder for job 4712" in capsys.readouterr().err


@pytest.mark.parametrize("shadow", ["folder", "file", "link to nothing"])
def test_what_lies_here_under_a_job_id_does_not_hide_the_job(fake, run_folder, monkeypatch, tmp_path, shadow):
    """A script's own folder of outputs a job, or its log."""
    run_folder.record()
    monkeypatch.setenv("BASE_LOG_DIR", str(run_folder.path.parent))
    here = tmp_path / "outputs"
    here.mkdir()
    monkeypatch.chdir(here)
    if shadow == "folder":
        (here / "4711").mkdir()
    elif shadow == "file":
        (here / "4711").write_text("a log")
    else:
        (here / "4711").symlink_to("gone")
    assert find("4711").run == folder_of("4711") == run_folder.path
    (here / "4711").rename(here / "4712")
    if shadow == "folder":  # of no job, so that it is what a report is asked of
        assert folder_of("4712") == Path("4712")
    (here / "4713").symlink_to(run_folder.path)
    monkeypatch.delenv("BASE_LOG_DIR")
    assert find("4713").run == run_folder.path and folder_of("4713") == Path("4713")


def test_a_job_id_is_found_by_what_slurm_knows(fake, run_folder, monkeypatch):
    run_folder.record()
    fake.show("4711", "RUNNING", WorkDir=str(run_folder.path.parent))
    monkeypatch.chdir("/")
    assert find("4711").run == run_folder.path


def test_a_job_is_found_by_the_folder_that_it_recorded_with_slurm(
    fake, run_folder, monkeypatch, capsys, tmp_path
):
    """Wherever its site puts run folders, from any folder, by every command that takes a job."""
    run_folder.record(cause="driver_exit", exit_code=0)
    run_folder.manifest(("policy_worker", 0, 3, 5, "ok"))
    fake.show("4711", "COMPLETED", Comment=f"my own words; rlprof:{run_folder.path}")
    monkeypatch.chdir("/")
    assert find("4711").run == run_folder.path
    for words in (("status",), ("logs", "--job-output"), ("stop",), ("harvest",), ("retry",), ("report",)):
        run(words[0], "4711", *words[1:])
        said = capsys.readouterr()
        assert "no run folder" not in said.out + said.err
    second = run_folder.path.with_name("4711.r1-logs")
    run_folder.path.rename(second)
    assert find("4711").run == second


@pytest.mark.parametrize(("folder", "other"), [("102-logs", "99_3"), ("99_3-logs", "102")])
def test_an_element_of_an_array_is_found_by_both_of_its_numbers(fake, run_folder, monkeypatch, folder, other):
    """Plain sbatch names its folders by the number of the job, submitit by those of array and element."""
    place = run_folder.path.with_name(folder)
    run_folder.record(job=folder.removesuffix("-logs"))
    run_folder.path.rename(place)
    mine = {"UserId": f"me({os.getuid()})", "Comment": f"rlprof:{place}"}
    fake.show(other, "RUNNING", **mine)
    monkeypatch.chdir("/")
    assert find(other).run == place
    place.rename(place.with_name(folder.replace("-logs", ".r1-logs")))
    assert find(other).run == find(f"{other}.r1").run == place.with_name(folder.replace("-logs", ".r1-logs"))
    assert [known.job for known in recall()] == [folder.removesuffix("-logs")]


def test_a_place_that_may_not_be_looked_into_hides_no_other(fake, run_folder, monkeypatch, capsys, tmp_path):
    """The folder of a project that has ended."""
    run_folder.record()
    real = os.stat

    def closed(path, *more, **how):
        if str(path).startswith("/closed/"):
            raise PermissionError(13, "Permission denied", str(path))
        return real(path, *more, **how)

    monkeypatch.setattr(os, "stat", closed)
    monkeypatch.setenv("BASE_LOG_DIR", "/closed/project")
    monkeypatch.chdir(run_folder.path.parent)
    assert find("4711").run == run_folder.path
    monkeypatch.chdir("/")
    assert run("status", "4711") == 2
    assert "tried /closed/project/4711-logs" in capsys.readouterr().err


def test_a_job_whose_own_checkout_has_a_site_is_found_before_it_recorded_anything(
    fake, run_folder, monkeypatch, tmp_path
):
    run_folder.record()
    checkout = tmp_path / "shared checkout"
    (checkout / "env").mkdir(parents=True)
    (checkout / "env" / "site.env").write_text(f"BASE_LOG_DIR={run_folder.path.parent}\n")
    fake.show("4711", "RUNNING", Command=str(checkout / "ray.sub"))
    monkeypatch.chdir("/")
    assert find("4711").run == run_folder.path


def test_an_unknown_job_and_one_of_somebody_elses_program(fake, capsys):
    assert run("status", "99") == 2
    assert "no run folder for job 99: Slurm does not know job 99; tried " in capsys.readouterr().err
    fake.show("98", "RUNNING", Command="/home/ann/train.sh")
    for command in ("status", "stop"):
        assert run(command, "98") == 2
        assert (
            "job 98 (RUNNING) is no job of rlprof's: its script is /home/ann/train.sh"
            in capsys.readouterr().err
        )


def test_what_slurm_told_of_my_job_is_remembered(fake, run_folder, monkeypatch):
    run_folder.record()
    fake.show("4711", "RUNNING", UserId=f"me({os.getuid()})", Comment=f"rlprof:{run_folder.path}")
    monkeypatch.chdir("/")
    assert find("4711").run == run_folder.path
    (fake.folder / "job-4711").unlink()
    assert find("4711").run == run_folder.path


def test_ps_lists_ours_alone(fake, run_folder, capsys):
    run_folder.record()
    run_folder.worker(0, CLOSED, last_step=5)
    row = [
        "4711",
        "RUNNING",
        "1:02",
        "4:00:00",
        "2",
        "n[1-2]",
        "None",
        "a|name",
        "/w",
        "/opt/rlprof/ray.sub",
        "(null)",
        "4711",
    ]
    other = [
        "4712",
        "RUNNING",
        "1:02",
        "4:00:00",
        "2",
        "n[1-2]",
        "None",
        "other",
        "/w",
        "/home/ann/train.sh",
        "(null)",
        "4712",
    ]
    (fake.folder / "queue").write_text("\x1f".join(row) + "\n" + "\x1f".join(other) + "\n")
    assert run("ps") == 0
    out = capsys.readouterr().out
    assert "4711" in out and "a|name" in out and "1 of 4 " in out
    assert "4712" not in out
    assert run("ps", "--json") == 0
    assert [view["job"] for view in json.loads(capsys.readouterr().out)] == ["4711"]


@pytest.mark.parametrize(("text", "lines", "expected"), [
    (b"a\nb\nc\n", 2, b"b\nc\n"), (b"a\nb\nc", 2, b"b\nc"), (b"a\n", 5, b"a\n"), (b"", 3, b""), (b"\n\n", 1, b"\n"), (b"a\nb\n", 0, b""),
    (b"x" * 200_000 + b"\nlast\n", 1, b"last\n"),
])  # fmt: skip
def test_the_last_lines_of_a_log(text, lines, expected):
    file = io.BytesIO(text)
    file.seek(job_logs.start_of(file, lines))
    assert file.read() == expected


def test_logs_follow_a_file_that_comes_late_and_grows(tmp_path, monkeypatch):
    path, said, clock = tmp_path / "driver.log", [], [0.0]
    turns = iter(["", "one\n", "two\n", "", "end\n", "", "", ""])

    def sleep(seconds: float) -> None:
        clock[0] += 3
        text = next(turns, "")
        if text:
            with open(path, "a") as file:
                file.write(text)

    looks = iter([(None, False), (None, False), (path, False), (path, False), (path, False), (path, True)])
    source = job_logs.Source("4711", "driver")
    monkeypatch.setattr(job_logs.Source, "look", lambda self: next(looks))
    job_logs.follow(source, said.append, sleep=sleep, clock=lambda: clock[0])
    assert b"".join(said) == b"one\ntwo\nend\n"


def test_logs_of_a_node_and_of_the_driver(fake, run_folder, capfdbinary):
    run_folder.record()
    for name in ("driver", "head", "n2"):
        (run_folder.path / "logs" / f"{name}.log").write_text(f"{name} 1\n{name} 2\n")
    assert run("logs", "4711") == 0
    assert run("logs", "4711", "--node", "0", "-n", "1") == 0
    assert run("logs", str(run_folder.path), "--node", "n2") == 0
    assert capfdbinary.readouterr().out == b"driver 1\ndriver 2\nhead 2\nn2 1\nn2 2\n"
    assert run("logs", "4711", "--node", "n7") == 2
    assert (
        b"--node n7: the job has n1, n2, and 0 is the head. Did you mean 'n2'?"
        in capfdbinary.readouterr().err
    )


def test_stop_drains_and_does_not_cancel_what_ends_by_itself(fake, run_folder, capsys):
    run_folder.record(cause="signal", exit_code=None)
    run_folder.manifest(("policy_worker", 0, 3, 5, "ok"))
    fake.show("4711", "RUNNING")
    fake.after_scancel("4711", "FAILED", ExitCode="143:0")
    assert run("stop", "4711") == 0
    assert fake.called("scancel") == [["scancel", "--signal=TERM", "4711.1"]]
    assert "1 capture planned: 1 ok" in capsys.readouterr().out


def test_stop_cancels_what_does_not_end_and_what_has_not_begun(fake, run_folder):
    said: list[str] = []
    clock = [0.0]

    def sleep(seconds: float) -> None:
        clock[0] += 10
        if clock[0] > 100:
            fake.show("4711", "CANCELLED")

    fake.show("4711", "RUNNING")
    assert stop(find("4711"), 60, said.append, sleep, lambda: clock[0]) == "killed"
    assert fake.called("scancel") == [["scancel", "--signal=TERM", "4711.1"], ["scancel", "4711"]]
    assert any("has not ended within 60 s" in line for line in said)
    fake.show("4711", "PENDING")
    assert stop(find("4711"), 60, said.append) == "cancelled"
    assert fake.called("scancel")[-1] == ["scancel", "4711"]
    fake.show("4711", "COMPLETED")
    assert stop(find("4711"), 60, said.append) == "ended"


def test_stop_of_a_forgotten_job_says_so(fake, run_folder, capsys):
    run_folder.record(cause="driver_exit", exit_code=0)
    assert run("stop", "4711") == 2
    assert "is not known to Slurm any more" in capsys.readouterr().err


def test_retry_asks_for_what_is_missing_with_the_flags_of_the_first(fake, run_folder, capsys, monkeypatch):
    assert (
        run(
            "submit",
            "-N",
            "2",
            "--gres=gpu:8",
            "--steps",
            "3:5,7",
            "--workers",
            "policy_worker",
            "--",
            "python",
            "a b.py",
        )
        == 0
    )
    run_folder.record(cause="driver_exit", exit_code=1)
    run_folder.manifest(
        ("policy_worker", 0, 3, 5, "ok"),
        ("policy_worker", 1, 3, 5, "missing"),
        ("policy_worker", 0, 7, 8, "truncated"),
        ("policy_worker", 1, 7, 8, "recovered"),
        ("policy_worker", 2, 7, 8, "empty"),
    )
    (fake.folder / "calls.jsonl").unlink()
    monkeypatch.chdir("/")
    assert run("retry", "4711", "--time=1:00:00") == 0
    argv, env = sent(fake)
    assert [call["cwd"] for call in fake.calls if call["argv"][0] == "sbatch"] == [
        str(run_folder.path.parent)
    ]

    assert argv[4:-1] == ["-N", "2", "--gres=gpu:8", "--time=1:00:00"]
    assert env["COMMAND"] == "python 'a b.py'"
    asked = [(spec.ranks, str(spec.steps), spec.options) for spec in load_request(env=env).captures]
    assert sorted(asked) == [((0, 2), "7", {"t": "nvtx"}), ((1,), "3:5", {"t": "nvtx"})]


@pytest.mark.parametrize("whose", ["mine", "another user's"])
def test_retry_of_a_requeued_job_has_the_flags_of_its_submission(fake, run_folder, capsys, whose):
    """They lie in the folder of the first attempt; what somebody else put there would run as me."""
    if whose != "mine" and os.getuid():
        pytest.skip("only root can give files away")
    flags = ["-N", "2", "--gres=gpu:8", "--partition=gpu"]
    assert run("submit", *flags, "--set", "NCCL_DEBUG=INFO", "--", "python", "a b.py") == 0
    again = RunFolder(run_folder.path.with_name("4711.r1-logs"))
    again.record(job="4711.r1", cause="driver_exit", exit_code=1)
    again.manifest(("policy_worker", 1, 7, 8, "missing"), job="4711.r1")
    if whose != "mine":
        os.chown(run_folder.path, 12345, -1)
    (fake.folder / "calls.jsonl").unlink()
    assert run("retry", "4711") == 0
    argv, env = sent(fake)
    said = capsys.readouterr().err
    if whose == "mine":
        assert (argv[4:-1], env["COMMAND"], env["NCCL_DEBUG"]) == (flags, "python 'a b.py'", "INFO"), said
        assert "was not submitted by `rlprof submit`" not in said
    else:
        assert (argv[4:-1], env["COMMAND"]) == (["--nodes=2"], "python train.py")
        assert "NCCL_DEBUG" not in env and "was not submitted by `rlprof submit`" in said


def test_retry_of_a_whole_job_and_of_one_without_a_folder(fake, run_folder, capsys):
    run_folder.record(cause="driver_exit", exit_code=0)
    run_folder.manifest(("policy_worker", 0, 3, 5, "ok"))
    assert run("retry", "4711") == 0
    assert "no capture is missing" in capsys.readouterr().out
    assert fake.called("sbatch") == []
    fake.show("5", "PENDING")
    assert run("retry", "5") == 1
    fake.show("4711", "RUNNING")
    run_folder.manifest(("policy_worker", 0, 3, 5, "missing"))
    assert run("retry", "4711") == 1
    assert "still runs" in capsys.readouterr().err
    assert fake.called("sbatch") == []


def test_retry_wants_its_job_first(fake, capsys):
    assert run("retry", "--wait", "4711") == 2
    assert "the job comes first, as in: rlprof retry 4711" in capsys.readouterr().err
    assert run("retry") == 2
    assert run("retry", "--help") == 0
    assert "Usage: rlprof retry JOB [OPTIONS] [ANY SBATCH OPTION]" in capsys.readouterr().out


def test_what_is_another_users_is_not_run_as_me(fake, run_folder, monkeypatch, capsys):
    run_folder.record(cause="driver_exit", exit_code=1)
    run_folder.manifest(("policy_worker", 0, 7, 8, "missing"))
    monkeypatch.setattr(os, "getuid", lambda: 12345)
    assert run("retry", "4711") == 2
    assert "is another user's: its command would run as you" in capsys.readouterr().err


def test_retry_of_a_job_that_sbatch_started(fake, run_folder, capsys):
    (run_folder.path / ".secrets" / "attach.env").write_text(
        "export CONTAINER='my image'\nexport RLPROF_NODE_ROOT=/tmp\nexport RLPROF_DRAIN_SECONDS=30\n"
    )
    run_folder.record(cause="driver_exit", exit_code=1)
    run_folder.manifest(("policy_worker", 0, 7, 8, "missing"))
    assert run("retry", "4711") == 0
    argv, env = sent(fake)
    assert argv[4:-1] == ["--nodes=2"]
    assert (env["CONTAINER"], env["RLPROF_DRAIN_SECONDS"], env["COMMAND"]) == (
        "my image",
        "30",
        "python train.py",
    )
    assert "RLPROF_NODE_ROOT" not in env
    assert "was not submitted by `rlprof submit`" in capsys.readouterr().err
    (run_folder.path / ".secrets" / "submit.json").unlink()  # the fake gives every job the same number
    run_folder.record(cause="driver_exit", exit_code=1, command="TOKEN=*** python train.py")
    assert run("retry", "4711") == 1
    assert "give the command again after `--`" in capsys.readouterr().err


def test_retry_of_a_job_that_sbatch_started_has_each_of_its_knobs(fake, run_folder):
    """Also those whose name is not ours, and those after one of several lines."""
    asked = {
        "BASE_LOG_DIR": str(run_folder.path.parent),
        "CONTAINER": "img.sqsh",
        "GPUS_PER_NODE": "4",
        "RLPROF_RAY_RESOURCES": '{\n "fast_disk": 1\n}',
        "RLPROF_READY_SECONDS": "900",
        "SETUP_COMMAND": "module load cuda\nulimit -c 0",
    }
    run = RunPlace(run_folder.path)
    place = SimpleNamespace(run=run, pinned_run=lambda: PinnedDir(run.path, run.path / ".secrets/inode"))
    given = {**{name: knob.default for name, knob in read_knobs().items()}, **asked, "COMMAND": "python x.py"}
    write_attach_file(place, given | {"RLPROF_JOB": "4711"})
    run_folder.record(cause="driver_exit", exit_code=1)
    again, _ = asked_again(run_folder.path, {})
    assert again.knobs == asked and again.command == "python train.py"
    assert b"COMMAND='python x.py'" not in run.attach_env.read_bytes()


def test_retry_takes_the_secrets_of_a_request_from_the_shell(fake, run_folder, capsys, monkeypatch):
    """run.json has none: a worker must not start with *** for its token."""
    monkeypatch.delenv("HF_TOKEN", raising=False)
    (capture,) = REQUEST["captures"]
    masked = {"captures": [{**capture, "env": {"HF_TOKEN": "***", "NCCL_DEBUG": "INFO"}}]}
    run_folder.record(cause="driver_exit", exit_code=1, request=masked)
    run_folder.manifest(("policy_worker", 0, 7, 8, "missing"))
    assert run("retry", "4711") == 2
    assert "holds the request with HF_TOKEN masked; set the variables of its `env` here too" in (
        capsys.readouterr().err
    )
    assert fake.called("sbatch") == []
    monkeypatch.setenv("HF_TOKEN", "q7Zk1Vw9Xr2Lm4Tp")
    assert run("retry", "4711", "--json") == 0
    assert load_request(env=sent(fake)[1]).captures[0].env == {
        "HF_TOKEN": "q7Zk1Vw9Xr2Lm4Tp",
        "NCCL_DEBUG": "INFO",
    }
    assert json.loads(capsys.readouterr().out)["request"]["captures"][0]["env"]["HF_TOKEN"] == "***"


def test_attach_leads_into_the_container_of_the_job(fake, run_folder, tmp_path):
    """The srun line, word for word, through the real scripts/attach.sh with an srun that shows its
    arguments.
    """
    (fake.folder / "queue").write_text("n[1-2]\n")
    (fake.folder / "bin" / "scontrol").write_text(
        '#!/bin/sh\n[ "$1 $2" = "show hostnames" ] && printf "n1\\nn2\\n"\n'
    )
    srun = fake.folder / "bin" / "srun"
    srun.write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    srun.chmod(0o755)
    from rlprof_ops.job.run_folder import Job
    from rlprof_ops.operate.attach_line import into, node_and_command

    file = run_folder.path / ".secrets" / "attach.env"
    tail = [
        "bash",
        "-c",
        'source "$0" && if [[ -n $1 ]]; then exec bash -c "$1"; else exec bash -i; fi',
        str(file),
        "nvidia-smi 'a b'",
    ]
    start = ["--jobid=4711", "--overlap", "--nodes=1", "--ntasks=1", "--nodelist=n2", "--mpi=none"]
    apptainer = [
        "apptainer",
        "exec",
        "--nv",
        "--bind",
        "/d:/d,/opt/r:/opt/r",
        "i.sif",
    ]
    node, argv = node_and_command(["1", "--", "nvidia-smi", "a b"])
    for variables, middle in (
        ("export CONTAINER=", []),
        (
            "export CONTAINER=img RLPROF_MOUNTS_CHOSEN=/d:/d,/opt/r:/opt/r",
            [
                "--container-name=rlprof-4711.r1:exec",
                "--container-mounts=/d:/d,/opt/r:/opt/r",
                "--no-container-mount-home",
            ],
        ),
        (
            (
                "export CONTAINER=i.sif RLPROF_CONTAINER_RUNTIME=apptainer "
                " RLPROF_MOUNTS_CHOSEN=/d:/d,/opt/r:/opt/r RLPROF_APPTAINER_ARGS=--nv"
            ),
            apptainer,
        ),
    ):
        file.write_text(f"export RLPROF_JOB=4711.r1\n{variables}\n")
        line, env = into(Job("4711.r1", run_folder.path, None), node, argv, os.environ)
        done = subprocess.run(
            line, env=env, capture_output=True, text=True, timeout=60, check=True, stdin=subprocess.DEVNULL
        )
        assert done.stdout.splitlines() == [*start, *middle, *tail]
    with pytest.raises(UsageError, match="a command goes after `--`"):
        node_and_command(["n1", "nvidia-smi"])


def test_the_dashboard_is_found_in_what_ray_said(fake, run_folder, capsys, tmp_path, monkeypatch):
    run_folder.record()
    assert run("dashboard", "4711") == 1
    (run_folder.path / ".secrets" / "attach.env").write_text("export RLPROF_DASHBOARD=0\n")
    assert run("dashboard", "4711") == 2
    assert "--set RLPROF_DASHBOARD=1" in capsys.readouterr().err
    (run_folder.path / "logs" / "n1").mkdir()
    (run_folder.path / "logs" / "n1" / "ray_start.log").write_text(
        "2026-11-21 03:46:38,939\tINFO scripts.py:1151 -- To monitor and debug Ray, view the dashboard at \n"
        "2026-11-21 03:46:38,939\tINFO scripts.py:1152 --   \x1b[1m127.0.0.1:33271\x1b[22m\x1b[26m\n"
        "2026-11-21 03:46:38,939\tINFO scripts.py:1159 -- If connection to the dashboard fails\n"
    )
    assert run("dashboard", "4711", "--port", "9000") == 0
    assert "ssh -N -L 127.0.0.1:9000:127.0.0.1:33271 n1" in capsys.readouterr().out
    tunnel_with_browser(tmp_path, monkeypatch)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    assert run("dashboard", "4711", "--port", str(port), "--open") == 4
    assert (tmp_path / "opened").read_text() == f"http://127.0.0.1:{port}\n"
    run_folder.record(head="n1; rm -rf /")
    assert run("dashboard", "4711") == 1


def tunnel_with_browser(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An ssh that is slow to listen, waits for one caller and ends with 4, and a browser that writes down
    what it is given.
    """
    ssh, browser = folder / "bin" / "ssh", folder / "bin" / "xdg-open"
    ssh.parent.mkdir()
    ssh.write_text(
        f"#!{sys.executable}\nimport socket, sys, time\ntime.sleep(0.5)\nport ="
        " int(sys.argv[sys.argv.index('-L') + 1].split(':')[1])\nserver = socket.create_server(('127.0.0.1',"
        " port))\nserver.settimeout(60)\nserver.accept()\ntime.sleep(0.5)\nsys.exit(4)\n"
    )
    browser.write_text(f'#!/bin/sh\necho "$1" > {folder}/opened\n')
    for tool in (ssh, browser):
        tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{ssh.parent}:{os.environ['PATH']}")
    monkeypatch.delenv("BROWSER", raising=False)


def test_following_says_each_change_once_and_ends_with_the_job(fake, run_folder):
    said: list[str] = []
    steps = iter(
        [
            lambda: run_folder.record(),
            lambda: None,
            lambda: run_folder.record(cause="driver_exit", exit_code=7),
            lambda: fake.show("4711", "FAILED", ExitCode="7:0"),
        ]
    )
    fake.show("4711", "PENDING", Reason="Resources")
    turns = [lambda: fake.show("4711", "RUNNING"), *steps]
    view = follow("4711", run_folder.path, Lines(said.append), sleep=lambda seconds: turns.pop(0)())
    assert (view.exit_code, view.over) == (7, True)
    assert [line.split(": ", 1)[1].split(",")[0] for line in said] == [
        "waiting in Slurm's queue (Resources)", "starting", "running", "ending", "ended with exit code 7",
    ]  # fmt: skip


def test_a_job_is_over_when_its_harvest_is(fake, run_folder, capsys):
    """`submit --wait` waits for the dependent job, also when Slurm has forgotten the first one by then."""
    run_folder.record("4711", cause="driver_exit", exit_code=7)
    harvest = run_folder.path / "harvest_job.json"
    harvest.write_text('{"job": "4712", "submitted_ns": 1}')
    fake.show("4711", "FAILED", ExitCode="9:0")
    fake.show("4712", "PENDING", Reason="Resources")

    view = status(capsys)
    assert (view["state"], view["harvest_job"], view["exit_code"]) == ("harvesting", "4712", 9)
    assert run("status", "4711") == 1
    assert "harvest     job 4712, waits in Slurm's queue (Resources)" in capsys.readouterr().out
    assert run("retry", "4711") == 1
    assert "the harvest, job 4712, waits in Slurm's queue (Resources)" in capsys.readouterr().err
    assert job_logs.Source("4711", "head").look()[1]

    def ends() -> None:
        run_folder.manifest(("policy_worker", 0, 3, 5, "ok"))
        harvest.unlink()

    turns = [
        lambda: (fake.folder / "job-4711").unlink(),
        lambda: fake.show("4712", "RUNNING"),
        ends,
    ]
    said: list[str] = []
    seen = follow("4711", run_folder.path, Lines(said.append), sleep=lambda seconds: turns.pop(0)())
    assert (seen.state, seen.exit_code, seen.complete) == ("ended", 9, True)
    assert [line.partition("job 4711: ")[2].partition(", 1 of")[0] for line in said] == [
        "ended with exit code 9, the harvest, job 4712, waits in Slurm's queue (Resources)",
        "ended with exit code 9, the harvest, job 4712, runs",
        "ended with exit code 9",
    ]


def test_a_harvest_that_was_killed_is_waited_for_no_more(fake, run_folder, capsys):
    run_folder.record("4711", cause="driver_exit", exit_code=0)
    fake.show("4711", "COMPLETED")
    for text in ('{"job": "4712"}', '{"job": "; rm"}', "[" * 5000):
        (run_folder.path / "harvest_job.json").write_text(text)
        fake.show("4712", "CANCELLED")
        assert status(capsys)["state"] == "ended", text


def test_the_next_run_of_a_requeued_job_is_followed(fake, run_folder):
    fake.show("4711", "RUNNING", Restarts="1")
    run_folder.record()
    from rlprof_ops.operate.follow import current

    assert current("4711", run_folder.path).id == "4711.r1"
    second = run_folder.path.with_name("4711.r1-logs")
    second.mkdir()
    assert current("4711", run_folder.path).run == second


@pytest.mark.parametrize(("line", "word", "expected"), [
    ("rlprof st", "1", {"status", "stop", "stacks"}), ("rlprof submit -N 2 --partition x --dr", "6", {"--dry-run"}), ("rlprof status 47", "2", {"4711"}), ("rlprof report 47", "2", {"4711"}), ("rlprof diff 47", "2", {"4711"}),
    ("rlprof view 47", "2", {"4711"}),
])  # fmt: skip
def test_a_shell_completes_commands_options_and_jobs(fake, capsys, monkeypatch, line, word, expected):
    run("submit", "--", "true")
    monkeypatch.setenv("COMP_WORDS", line)
    monkeypatch.setenv("COMP_CWORD", word)
    monkeypatch.setenv("_RLPROF_COMPLETE", "bash_complete")
    capsys.readouterr()
    run()
    found = {text.split(",")[1] for text in capsys.readouterr().out.split()}
    assert found and found <= expected


@pytest.mark.parametrize("line", ["plan", "convert --to verl", "submit --request", "wrap --request"])
def test_a_shell_completes_files_where_a_request_stands(fake, capsys, monkeypatch, line):
    monkeypatch.setenv("COMP_WORDS", f"rlprof {line} ")
    monkeypatch.setenv("COMP_CWORD", str(len(line.split()) + 1))
    monkeypatch.setenv("_RLPROF_COMPLETE", "bash_complete")
    run()
    assert capsys.readouterr().out.startswith("file,")


def test_the_live_view_is_a_table_that_stands_still(fake, run_folder):
    rich_console = pytest.importorskip("rich.console")
    from rich.live import Live

    from rlprof_ops.operate.follow import Panel
    from rlprof_ops.operate.job_status import look

    run_folder.record()
    run_folder.worker(0, CLOSED, last_step=5)
    fake.show("4711", "RUNNING", JobName="[red]x")
    out = io.StringIO()
    console = rich_console.Console(file=out, force_terminal=True, width=100)
    with Panel(Live(console=console, auto_refresh=False, transient=True)) as show:
        show(look(find("4711")))
    assert (
        "1 of 4 " in out.getvalue()
        and "4 captures" not in out.getvalue()
        and "running (RUNNING)" in out.getvalue()
    )


def test_without_a_job_the_latest_is_meant_and_named(fake, run_folder, capsys):
    assert run("status") == 2
    assert "no job of yours is known here: give a job id" in capsys.readouterr().err
    run("submit", "--", "true")
    run_folder.record(cause="driver_exit", exit_code=0)
    run_folder.manifest(("policy_worker", 0, 3, 5, "ok"))
    capsys.readouterr()
    assert run("status") == 0
    said = capsys.readouterr()
    assert "job 4711, your latest" in said.err and "job 4711\n" in said.out
    row = [
        "4715",
        "PENDING",
        "0:00",
        "4:00:00",
        "2",
        "",
        "Priority",
        "x",
        "/w",
        "/opt/rlprof/ray.sub",
        "(null)",
        "4715",
    ]
    (fake.folder / "queue").write_text("\x1f".join(row) + "\n")
    fake.show("4715", "PENDING")
    run("status")
    assert "job 4715, your latest" in capsys.readouterr().err


def test_what_ends_a_job_wants_it_named_where_nobody_can_be_asked(fake, run_folder, capsys):
    run("submit", "--", "true")
    assert run("stop") == 2
    assert "name the job, as in: rlprof stop 4711" in capsys.readouterr().err
    assert fake.called("scancel") == []


def test_help_version_and_completion(capsys):
    assert run("help") == 0
    assert "submit" in capsys.readouterr().out
    assert run("help", "stop") == 0
    assert "Usage: rlprof stop" in capsys.readouterr().out
    assert run("help", "stpo") == 2
    assert "Did you mean 'stop'?" in capsys.readouterr().err
    assert run("-v") == 0
    assert capsys.readouterr().out.startswith("rlprof, version ")
    assert run("--version", "--json") == 0
    assert {"rlprof", "python", "ray", "nvtx", "scanner"} <= set(json.loads(capsys.readouterr().out))
    for shell in ("bash", "zsh", "fish"):
        assert run("completion", shell) == 0
        assert "_RLPROF_COMPLETE" in capsys.readouterr().out
    assert run("completion", "tcsh") == 2


def test_completion_is_installed_and_a_real_bash_completes(capsys, monkeypatch, tmp_path):
    from rlprof_ops.job.knobs import import_path

    monkeypatch.setenv("HOME", str(tmp_path))
    assert run("completion", "bash", "--install") == 0
    file = tmp_path / ".local/share/bash-completion/completions/rlprof"
    assert str(file) in capsys.readouterr().err
    (tmp_path / "rlprof").write_text(f'#!/bin/sh\nexec "{sys.executable}" -m rlprof_ops "$@"\n')
    (tmp_path / "rlprof").chmod(0o755)
    script = (
        f'source "{file}"; COMP_WORDS=(rlprof compl) COMP_CWORD=1;'
        ' _rlprof_completion rlprof; echo "${COMPREPLY[@]}"'
    )
    env = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}", "PYTHONPATH": import_path()}
    done = subprocess.run(["bash", "-c", script], env=env, capture_output=True, text=True, timeout=60)
    assert done.stdout.split() == ["completion"], done.stderr
    assert run("completion", "zsh", "--install") == 0 and (tmp_path / ".zfunc/_rlprof").exists()


def silent_run(base: Path, head: str, age_s: float) -> str:
    """A run without Slurm that wrote its state so long ago, and no end."""
    job = "local-17-4"
    folder = RunFolder(base / f"{job}-logs")
    folder.record(job, head=head, nodes=[head])
    state = {"schema": 1, "written_ns": time.time_ns() - int(age_s * 1e9)}
    (folder.path / "state.json").write_text(json.dumps(state))
    return str(folder.path)


def test_a_run_without_slurm_whose_processes_were_killed_has_ended(fake, tmp_path, capsys):
    folder = silent_run(tmp_path, socket.gethostname(), 100)
    with subprocess.Popen(["sleep", "60"], env={**os.environ, "RLPROF_JOB": "local-17-4"}) as alive:
        assert run("status", folder) == 0 and "state       running" in capsys.readouterr().out
        assert run("stop", folder) == 2
        assert "is none of Slurm's: end it with Ctrl-C where it was started" in capsys.readouterr().err
        alive.kill()

    why = f"its head node {socket.gethostname()} ended without a word; none of its processes is left there"
    assert run("status", folder) == 1
    said = capsys.readouterr().out
    assert "state       ended" in said and "node_lost" in said and why in said
    assert run("harvest", folder) == 3 and why in capsys.readouterr().out
    assert run("retry", folder, "--dry-run") == 0
    assert run("ps", folder) == 0 and "node_lost" in capsys.readouterr().out
    assert run("stop", folder) == 3 and "has ended already" in capsys.readouterr().out


@pytest.mark.parametrize(("here", "age_s"), [(True, 10), (False, 100)])
def test_a_run_without_slurm_that_may_live_is_not_called_ended(fake, tmp_path, capsys, here, age_s):
    folder = silent_run(tmp_path, socket.gethostname() if here else "n77", age_s)
    assert run("status", folder) == 0 and "state       running" in capsys.readouterr().out
    assert run("retry", folder, "--dry-run") == 1 and "still runs" in capsys.readouterr().err


def test_a_full_disk_is_one_line_and_a_mistake_of_ours_is_not_hidden(capsys, monkeypatch):
    import errno

    from rlprof_ops.cli import cli

    def fail(number: int) -> None:
        def main(**more: object) -> None:
            raise OSError(number, os.strerror(number), "/shared/4711-logs/manifest.json")

        monkeypatch.setattr(cli, "main", main)

    fail(errno.ENOSPC)
    assert run("harvest", "4711") == 1
    assert capsys.readouterr().err == "rlprof: /shared/4711-logs/manifest.json: No space left on device\n"
    fail(errno.EBADF)
    with pytest.raises(OSError):
        run("harvest", "4711")
