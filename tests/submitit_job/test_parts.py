"""RayJob's parts without Ray: what it refuses, how it travels, how tasks find each other, what is left to
capture.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import pickle
import signal
import socket
import sys
import threading
from dataclasses import asdict, replace
from types import SimpleNamespace

import pytest

from rlprof_ops import RayJob, RunSummary
from rlprof_ops.collect.harvest.manifest import CaptureResult, Manifest
from rlprof_ops.errors import RlprofError, UsageError
from rlprof_ops.job.folders import RunFolder
from rlprof_ops.job.supervisor_env import node_command, python_environment
from rlprof_ops.request import Steps, request_from_dict, request_from_json
from rlprof_ops.submit.missing_captures import asked_now, missing_request
from rlprof_ops.submitit_job import follow_up, head_server, rendezvous, task_context
from rlprof_ops.supervisor.node.node_state import ToldToEnd
from rlprof_ops.supervisor.task_process import TaskProcess, handed_on
from tests.waits import wait_until

ASKED = request_from_dict({"captures": [
    {"backend": "nsight", "workers": ["*policy*"], "steps": "3:5,10", "options": {"t": "nvtx"}},
    {"backend": "torch", "workers": ["generation_worker"], "ranks": [0], "steps": "3"},
]})  # fmt: skip


def manifest(*rows: tuple[str, str, int | None, int, int, str]) -> Manifest:
    captures = tuple(
        CaptureResult(f"{backend}/{worker}/{rank}/{start}", backend, worker, rank, start, stop, None, state)
        for backend, worker, rank, start, stop, state in rows
    )
    return Manifest("1", captures, ())


def test_what_is_missing_is_asked_again():
    left = missing_request(
        manifest(
            ("nsight", "policy_worker", 0, 3, 5, "ok"),
            ("nsight", "policy_worker", 0, 10, 11, "missing"),
            ("nsight", "policy_worker", 1, 3, 5, "recovered"),
            ("nsight", "policy_worker", 1, 10, 11, "truncated"),
            ("torch", "generation_worker", 0, 3, 4, "ok"),
        ),
        ASKED,
    )
    [spec] = left.captures
    assert (spec.backend, spec.workers, spec.ranks, str(spec.steps), spec.options) == (
        "nsight",
        ("policy_worker",),
        (0, 1),
        "10",
        {"t": "nvtx"},
    )
    again = missing_request(
        manifest(
            ("nsight", "policy_worker", 0, 10, 11, "ok"), ("nsight", "policy_worker", 1, 10, 11, "missing")
        ),
        left,
    )
    assert again.captures[0].ranks == (1,)
    assert not missing_request(manifest(("nsight", "policy_worker", 1, 10, 11, "ok")), again)


def test_nothing_known_asks_for_everything():
    assert missing_request(manifest(), ASKED) == ASKED
    nobody = missing_request(manifest(("torch", "generation_worker", None, 3, 4, "missing")), ASKED)
    assert nobody.captures[0].ranks == (0,)


def test_what_a_when_opened_in_vain_waits_for_it_again():
    step, waits = {"backend": "torch", "workers": ["w"], "steps": "2"}, {"step_time": "> 2 x median"}
    asked = request_from_dict(
        {"captures": [step, {"backend": "memory", "workers": ["w"], "steps": "3:6", "when": waits}]}
    )
    home = manifest(("torch", "w", 0, 2, 3, "ok"), ("memory", "w", 0, 3, 6, "ok"))
    [lost] = manifest(("memory", "w", 0, 4, 5, "missing")).captures
    rows = [replace(lost, asked_by=by) for by in ("when-slow_step-step3-2", "r7a1")]
    [again] = missing_request(replace(home, captures=(*home.captures, *rows)), asked).captures
    assert again == replace(asked.captures[1], steps=Steps())
    assert not missing_request(replace(home, captures=(*home.captures, rows[1])), asked)
    assert missing_request(replace(home, captures=(rows[0],)), asked) == asked


def test_a_job_that_goes_on_takes_what_is_missing_and_waits_as_before(tmp_path):
    """A capture with steps and a trigger: its steps are home, and it still opens when something is found."""
    asked = request_from_dict({"captures": [
        {"backend": "torch", "workers": ["w"], "steps": "2, 5", "when": {"step_time": "> 2 x median"}},
        {"backend": "memory", "workers": ["w"], "when": {"every": 100}},
        {"backend": "nsight", "workers": ["w"], "steps": "3"},
    ]})  # fmt: skip
    homes = manifest(("torch", "w", 0, 2, 3, "ok"), ("torch", "w", 0, 5, 6, "missing"),
                     ("torch", "w", 0, 70, 71, "missing"), ("nsight", "w", 0, 3, 4, "ok"))  # fmt: skip
    for name, rows in (("7-logs", homes), ("7.r1-logs", manifest(("torch", "w", 0, 5, 6, "recovered")))):
        (tmp_path / name).mkdir()
        (tmp_path / name / "manifest.json").write_text("".join(rows.lines()))
    env = {"RLPROF_REQUEST_JSON": asked.to_json()}

    def now(numbers: str):
        return asked_now("7.r2", tmp_path / "7.r2-logs", {**env, "RLPROF_EARLIER_ATTEMPTS": numbers})

    assert now("") == asked
    first = now("0")
    assert [(spec.backend, str(spec.steps), spec.when is not None) for spec in first.captures] == [
        ("torch", "5", False), ("torch", "", True), ("memory", "", True),
    ]  # fmt: skip
    assert request_from_json(first.to_json()) == first
    both = now("0 1")
    assert [(spec.backend, str(spec.steps)) for spec in both.captures] == [("torch", ""), ("memory", "")]
    assert [note.rpartition("/")[2] for note in both.notes] == ["7-logs", "7.r1-logs"]
    assert "2 of 4 captures" in both.notes[0]
    (tmp_path / "7-logs/manifest.json").write_text("{")
    unread = now("0")
    assert unread == asked and "7-logs" in unread.notes[0]
    (tmp_path / "7-logs/manifest.json").write_text("".join(replace(homes, running=True).lines()))
    of_before = now("0")  # other workers may have come after it
    assert of_before == asked and "has a manifest from while it ran" in of_before.notes[0]


def test_mistakes_are_told_before_submitting():
    with pytest.raises(UsageError) as told:
        RayJob("x", settings={"RLPROF_READY_SECOND": "1", "COMMAND": "y"})
    assert "Did you mean 'RLPROF_READY_SECONDS'?" in str(told.value) and "command=" in str(told.value)
    with pytest.raises(UsageError, match="RLPROF_READY_SECONDS='soon'"):
        RayJob("x", settings={"RLPROF_READY_SECONDS": "soon"})
    with pytest.raises(UsageError, match="counted from 1"):
        RayJob("x", {"captures": [{"workers": ["w"], "steps": "0"}]})


def test_it_travels():
    job = RayJob(["python", "a b.py"], ASKED, {"PORT": 6379}, requeue=True)
    assert job.command == "python 'a b.py'" and job.settings == {"PORT": "6379"}
    other = pickle.loads(pickle.dumps(job))
    assert other == job and other.request == ASKED


def test_checkpoint_without_requeue_is_none():
    pytest.importorskip("submitit")
    assert RayJob("x").checkpoint() is None
    assert RayJob("x", ASKED, requeue=True).checkpoint().function == RayJob("x", ASKED, requeue=True)


def test_rendezvous(tmp_path):
    run = RunFolder(tmp_path / "1-logs")
    run.create()
    found: list[rendezvous.Rendezvous] = []
    waiting = threading.Thread(target=lambda: found.append(rendezvous.wait(run, 60)))
    waiting.start()
    rendezvous.publish(run, rendezvous.Rendezvous("10.0.0.1", 1, 2))
    waiting.join(60)
    assert found == [rendezvous.Rendezvous("10.0.0.1", 1, 2)]
    assert (run.secrets / "rendezvous.json").stat().st_mode & 0o077 == 0
    rendezvous.publish(run, rendezvous.Rendezvous(failed="no port"))
    with pytest.raises(RlprofError, match="the first node could not start: no port"):
        rendezvous.wait(run, 60)
    with pytest.raises(RlprofError, match="RLPROF_READY_SECONDS"):
        rendezvous.wait(RunFolder(tmp_path / "2-logs"), 0.3)


@pytest.mark.parametrize("what", ["open to others", "a link", "of another user"])
def test_a_rendezvous_that_somebody_else_could_have_written_is_not_used(tmp_path, what):
    run = RunFolder(tmp_path / "1-logs")
    run.create()
    rendezvous.publish(run, rendezvous.Rendezvous("10.6.6.6", 1, 2))
    file = run.secrets / "rendezvous.json"
    if what == "open to others":
        file.chmod(0o666)
    elif what == "a link":
        file.rename(tmp_path / "theirs")
        file.symlink_to(tmp_path / "theirs")
    elif os.getuid():
        pytest.skip("only root can give files away")
    else:
        os.chown(file, 12345, -1)
    with pytest.raises(RlprofError, match="RLPROF_READY_SECONDS" if what == "a link" else "rendezvous.json"):
        rendezvous.wait(run, 0.3)


@pytest.fixture
def job_number(monkeypatch):
    """Ports that no other test has; whoever listens there is waited for on a busy machine, too."""
    monkeypatch.setattr(head_server, "_CONNECT_S", 60.0)
    monkeypatch.setattr(head_server, "_TALK_S", 60.0)
    return os.getpid() * 50


def test_the_first_task_answers_over_tcp_and_storage_is_left_alone(tmp_path, monkeypatch, job_number):
    run = RunFolder(tmp_path / "1-logs")
    run.create()
    run.write_token()
    looked: list[str] = []
    monkeypatch.setattr(RunFolder, "read_secret", lambda *at: looked.append(at[1]) or "")
    read: list[str] = []
    token = lambda: read.append("token") or "secret"  # noqa: E731
    found: list[rendezvous.Rendezvous] = []
    asked = threading.Event()

    def ask() -> object:
        asked.set()
        return head_server.ask(["127.0.0.1"], job_number, token)

    waits = threading.Thread(target=lambda: found.append(rendezvous.wait(run, 60, 7, 8, ask)))
    waits.start()
    assert asked.wait(30)
    served = rendezvous.Rendezvous("10.0.0.1", 1, 2)
    server = head_server.HeadServer(asdict(served), "secret", job_number, 1)
    waits.join(60)
    assert (found, looked, read) == ([served], [], ["token"])
    wait_until(lambda: head_server.ask(["127.0.0.1"], job_number, token) is None, 30)  # all have asked
    assert server.port in head_server.ports(job_number)


def test_somebody_else_on_the_first_tasks_port_is_not_believed(job_number):
    theirs = head_server.HeadServer({"head_ip": "10.6.6.6"}, "another token", job_number, 99)
    ours = head_server.HeadServer({"failed": "no port"}, "secret", job_number, 99)
    try:
        assert ours.port != theirs.port
        assert head_server.ask(["127.0.0.1"], job_number, lambda: "secret") == {"failed": "no port"}
        assert head_server.ask(["127.0.0.1"], job_number, lambda: "") is None
    finally:
        theirs.close()
        ours.close()


def test_only_tasks_that_prove_it_count_as_having_asked_and_each_counts_once(job_number):
    served = {"head_ip": "10.0.0.1"}
    server = head_server.HeadServer(served, "secret", job_number, 2)
    for said in (b"", b"1\n" + b"0" * 64 + b"\n", b"2\nnothing\n", b"\xff\n\xff\n"):
        with socket.create_connection(("127.0.0.1", server.port), 10) as stranger:
            stranger.sendall(b"nonce\n" + said)
            with stranger.makefile("rb") as stream:
                assert json.loads(stream.readline()) == served
    for rank in (1, 1, 1, 2):  # a task that was started again asks again
        assert head_server.ask(["127.0.0.1"], job_number, lambda: "secret", rank) == served, rank
    wait_until(lambda: head_server.ask(["127.0.0.1"], job_number, lambda: "secret") is None, 30)


def test_a_port_that_has_answered_is_free_for_the_next_job(job_number):
    server = head_server.HeadServer({"head_ip": "10.0.0.1"}, "token", job_number, 1)
    assert head_server.ask(["127.0.0.1"], job_number, lambda: "token") == {"head_ip": "10.0.0.1"}

    async def listen() -> None:  # as the control channel does
        (await asyncio.start_server(lambda reader, writer: None, "127.0.0.1", server.port)).close()

    def free() -> bool:
        with contextlib.suppress(OSError):
            asyncio.run(listen())
            return True
        return False

    wait_until(free, 60, f"port {server.port} is in use", pause_s=0.2)


@pytest.mark.parametrize("ask", [None, lambda: None])
def test_512_tasks_that_wait_look_twenty_times_a_second_together(tmp_path, monkeypatch, ask):
    """Counted on the real calls of one of them, as they are on storage; nobody answers over TCP."""
    run = RunFolder(tmp_path / "1-logs")
    run.create()
    opened: list[str] = []
    really = os.open
    monkeypatch.setattr(
        os, "open", lambda path, *a, **more: (opened.append(str(path)), really(path, *a, **more))[1]
    )
    slept: list[float] = []
    clock = [0.0]
    monkeypatch.setattr(rendezvous.time, "monotonic", lambda: clock[0])

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        clock[0] += seconds

    monkeypatch.setattr(rendezvous.time, "sleep", sleep)
    with pytest.raises(RlprofError, match="RLPROF_READY_SECONDS"):
        rendezvous.wait(run, 300, rank=511, tasks=512, ask=ask)
    assert 0 < len(opened) / 300 * 512 <= 20


def test_seats_of_local_attempts(tmp_path, monkeypatch):
    for name in ("SUBMITIT_EXECUTOR", "SUBMITIT_FOLDER"):
        monkeypatch.delenv(name, raising=False)
    first = task_context.take(str(tmp_path))
    assert first.job == f"local-{os.getpid()}" and first.earlier == ()
    first.run_dir.mkdir()
    (first.run_dir / "run.json").write_text("{}")
    second = task_context.take(str(tmp_path))
    assert second.job == f"{first.job}.r1" and second.earlier == (first.run_dir,)
    second.run_dir.mkdir()
    assert follow_up.newest(first.run_dir) == second.run_dir


def test_seats_on_slurm(tmp_path, monkeypatch):
    pytest.importorskip("submitit")
    env = {
        "SUBMITIT_EXECUTOR": "slurm",
        "SLURM_JOB_ID": "7",
        "SLURM_NTASKS": "3",
        "SLURM_JOB_NUM_NODES": "3",
        "SLURM_NODEID": "2",
        "SLURM_JOB_NODELIST": "n[1-3]",
        "SLURM_RESTART_COUNT": "1",
        "SLURMD_NODENAME": "n3",
        "SUBMITIT_FOLDER": str(tmp_path),
    }
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    taken = task_context.take(None)
    assert (taken.job, taken.rank, taken.node, taken.nodes, taken.run_dir) == (
        "7.r1",
        2,
        "n3",
        ("n1", "n2", "n3"),
        tmp_path / "7.r1-logs",
    )
    monkeypatch.setenv("SLURM_NTASKS", "6")
    with pytest.raises(UsageError, match="tasks_per_node=1"):
        task_context.take(None)


def test_the_environment_names_this_python():
    assert python_environment({})["RLPROF_PYTHON"] == sys.executable
    assert "RLPROF_PYTHON" not in python_environment({"RLPROF_VENV": "/venv"})


NODE_SCRIPT = """\
import os, pathlib, signal, sys, time
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
base = pathlib.Path(sys.argv[1])
(base / "sid").write_text(str(os.getsid(0)))
(base / "up").touch()
while not (base / "listen").exists():
    time.sleep(0.05)
signal.sigwait({signal.SIGTERM})
sys.exit(5)
"""


@pytest.fixture
def task_process(tmp_path, monkeypatch):
    """One that listens once there is a file `listen`, as a supervisor does when all is imported."""
    script = tmp_path / "scripts" / "node.sh"
    script.parent.mkdir()
    (tmp_path / "node.py").write_text(NODE_SCRIPT)
    script.write_text(f"sleep 0.2\nexec {sys.executable} {tmp_path}/node.py {tmp_path}\n")
    monkeypatch.setenv("RLPROF_HOME", str(tmp_path))
    process = TaskProcess(node_command(), os.environ)
    yield process
    process.tell(signal.SIGKILL)
    assert process.wait(60)


def test_a_task_process_has_its_own_session_and_dies_with_its_task(tmp_path, task_process):
    (tmp_path / "listen").touch()
    wait_until((tmp_path / "up").exists)
    assert int((tmp_path / "sid").read_text()) != os.getsid(0)
    assert not task_process.wait(0.2)
    task_process.tell(signal.SIGTERM)
    assert task_process.wait(60) and task_process.exit_code() == 5 and task_process.ended


def test_a_task_that_waits_for_the_first_one_can_be_told_to_end(tmp_path):
    job = RayJob("x", settings={"RLPROF_READY_SECONDS": "300"}, log_dir=tmp_path)
    place = task_context.TaskContext("slurm", "7", tmp_path, 1, ("127.0.0.1", "n2"), "n2")
    with handed_on(job._signals(place), job._tell), pytest.raises(ToldToEnd, match="before the first task"):
        os.kill(os.getpid(), signal.SIGTERM)
        job._join(place, RunFolder(place.run_dir))


def test_an_order_waits_for_who_listens(tmp_path, task_process):
    """In bash, and in a Python that imports: both would die of it, and nobody would drain."""
    task_process.tell(signal.SIGTERM)
    wait_until((tmp_path / "up").exists)
    assert not task_process.wait(0.2)
    (tmp_path / "listen").touch()
    assert task_process.wait(60) and task_process.exit_code() == 5


def test_waiting_ends_when_the_job_is_gone(tmp_path, monkeypatch):
    """No sacct, a job that was killed: squeue knows it no more and there is no result."""
    squeue = tmp_path / "squeue"
    squeue.write_text("#!/bin/sh\necho 'slurm_load_jobs error: Invalid job id specified' >&2; exit 1\n")
    squeue.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setattr(follow_up, "_GRACE_S", 0.2)
    monkeypatch.setattr(follow_up, "_ASK_EVERY_S", 0.2)
    (tmp_path / "err").write_text("slurmstepd: error: *** STEP 9.0 ON n1 CANCELLED ***\n")

    class SlurmJob:
        job_id = "9"

        def task(self, number):
            return SimpleNamespace(
                paths=SimpleNamespace(result_pickle=tmp_path / "none", stderr=tmp_path / "err"), job_id="9"
            )

    with pytest.raises(RlprofError, match=r"ended without a result(.|\n)*CANCELLED"):
        follow_up.wait_for(SlurmJob())


def test_a_summary_joins_attempts(tmp_path):
    earlier = tmp_path / "1-logs"
    earlier.mkdir()
    (earlier / "manifest.json").write_text(
        manifest(("torch", "w", 0, 1, 2, "ok"), ("torch", "w", 0, 3, 4, "missing")).to_json()
    )
    last = manifest(("torch", "w", 0, 3, 4, "ok"))
    summary = RunSummary(
        0, str(tmp_path / "1.r1-logs"), "driver_exit", manifest=last, earlier=(str(earlier),)
    )
    assert summary.captures() == {"torch/w/0/1": "ok", "torch/w/0/3": "ok"} and summary.ok


def test_what_nobody_has_harvested_is_not_ok(tmp_path):
    run = str(tmp_path)
    unharvested = RunSummary(0, run, "driver_exit", asked=True, harvest_job="4712")
    assert not unharvested.ok and repr(unharvested) == f"RunSummary(exit code 0, not harvested, {run})"
    assert replace(unharvested, manifest=manifest(("torch", "w", 0, 3, 4, "ok"))).ok
    assert RunSummary(0, run, "driver_exit").ok, "nothing was asked"


def test_a_summary_is_short_and_leads_to_the_report(tmp_path):
    run = tmp_path / "<1>-logs"
    run.mkdir()
    manifest_ = manifest(("torch", "w", 0, 3, 4, "ok"), ("torch", "w", 1, 3, 4, "missing"))
    summary = RunSummary(143, str(run), "signal", "told to end\nby a person", manifest=manifest_)
    assert repr(summary) == f"RunSummary(exit code 143, signal: told to end, 1 of 2 captures, {run})"
    (run / "report.html").write_text("")
    assert repr(summary).endswith(f", {run}/report.html)")
    shown = summary._repr_html_()
    assert f'href="file://{tmp_path}/%3C1%3E-logs/report.html"' in shown
    assert "<li>torch/w/1/3: missing</li>" in shown and "<1>" not in shown
