"""Drain: this job's windows are closed, its raw captures become reports, its processes end, and nobody
else's.
"""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time

import pytest
from tests import real_nsys
from tests.hung import hung
from tests.needs import need
from tests.nsys_stand_in import hanging_nsys, slow_nsys
from tests.waits import poll, wait_until

from rlprof_ops.backends.nsight.nsys_cli import find_importer
from rlprof_ops.collect import event_logs
from rlprof_ops.collect.drain import drain_steps
from rlprof_ops.collect.drain.nsys_contents import look
from rlprof_ops.collect.sync.__main__ import Syncer
from rlprof_ops.host import processes

JOB = f"t{os.getpid()}"
TRAINER = """
import sys, time, nvtx
capture = {int(step) for step in sys.argv[1].split(",")} if sys.argv[1] else set()
for step in range(1, int(sys.argv[2]) + 1):
    window = nvtx.start_range("capture", domain="rlprof") if step in capture else None
    with nvtx.annotate(f"step {step}", domain="rlprof"):
        time.sleep(0.05)
    if window:
        nvtx.end_range(window)
print("done", flush=True)
time.sleep(60)
"""


def quiet(message):
    pass


@pytest.fixture
def nsys():
    if shutil.which("nsys") is None:
        if os.environ.get("RLPROF_TESTS_REQUIRE") == "all":
            pytest.fail("nsys is not installed, and RLPROF_TESTS_REQUIRE=all asks for it")
        pytest.skip("nsys is not installed")


@pytest.fixture
def node(tmp_path):
    folder = tmp_path / "node"
    for name in ("tmp", "events", "profiles", "logs"):
        (folder / name).mkdir(parents=True)
    return folder


@pytest.fixture
def start(node):
    """Starts a process of the job; all of them are ended afterwards."""
    running = []

    def start(argv, job=JOB, **more):
        env = {
            **os.environ,
            "RLPROF_JOB": job,
            "RLPROF_NODE_DIR": str(node),
            "TMPDIR": str(node / "tmp"),
            **more.pop("env", {}),
        }
        process = subprocess.Popen(
            argv, env=env, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, start_new_session=True, **more
        )
        running.append((job, process))
        return process

    yield start
    for job, process in running:
        processes.end(processes.of_job(job, node), grace_s=1)
        if process.poll() is None:
            process.kill()
        process.wait()
        process.stdout.close()


def event_log(node, pid, start=3, stop=5):
    rows = [
        {"event": "registered", "t_ns": 1, "worker": "policy_worker", "rank": 1, "pid": pid, "host": "n1"},
        {
            "event": "opened",
            "t_ns": 2,
            "backend": "nsight",
            "steps": [start, stop],
            "phase": None,
            "report": "r",
        },
        # Slurm signals every process of a step: nsys may have ended by itself when the gate wanted to stop
        # it.
        {
            "event": "failed",
            "t_ns": 3,
            "backend": "nsight",
            "steps": [start, stop],
            "phase": None,
            "reason": "`nsys stop` failed",
        },
    ]
    (node / "events/policy_worker_rank1_n1_9.jsonl").write_text(
        "".join(json.dumps(row) + "\n" for row in rows)
    )


def lines_until(process, text, deadline_s=30):
    until = time.monotonic() + deadline_s
    while time.monotonic() < until:
        if text in process.stdout.readline():
            return
    pytest.fail(f"{text!r} did not come")


@pytest.mark.nsys
def test_a_worker_under_nsys_profile_is_ended_and_its_report_is_whole_when_that_returns(nsys, node, start):
    report = node / "inplace/nsight/policy_worker/rank0/policy_worker_rank0_n1_7.nsys-rep"
    report.parent.mkdir(parents=True)
    command = [
        sys.executable,
        "-c",
        "import signal, sys; signal.signal(signal.SIGTERM, lambda *_: sys.exit())\n" + TRAINER,
        "",
        "3",
    ]
    worker = start(real_nsys.command(report, run=command))
    assert b"done" in worker.stdout.readline()

    phase = drain_steps.end_wrapped(node, JOB, deadline_s=60, say=quiet)

    assert worker.poll() is not None or worker.wait(timeout=5) is not None
    assert (len(phase.done), phase.failed) == (1, ())
    assert look(report, timeout_s=60).steps == {1, 2, 3}


LEAVING = """
import os, signal, sys, time, nvtx
signal.signal(signal.SIGTERM, lambda *_: sys.exit())  # as Ray's workers do
for step in range(20):
    with nvtx.annotate("train", domain="trainer"):
        time.sleep(0.05)
class Slow:
    def __del__(self, sleep=time.sleep, now=time.monotonic, write=os.write):
        write(1, b"leaves\\n")
        LEAVES
        write(1, b"has left\\n")
slow = Slow()
"""


@pytest.mark.nsys
@pytest.mark.parametrize(
    "leaves", ["sleep(1.5)", "until = now() + 7\n        while now() < until: pass"], ids=["waits", "works"]
)
def test_a_worker_that_is_leaving_by_itself_may_give_nsys_what_it_holds(nsys, node, start, tmp_path, leaves):
    """Python that ends has given up its handlers: then a SIGTERM kills, before nsys has the last ranges."""
    report = node / "inplace/nsight/policy_worker/rank0/policy_worker_rank0_n1_7.nsys-rep"
    report.parent.mkdir(parents=True)
    worker = start(real_nsys.command(report, run=[sys.executable, "-c", LEAVING.replace("LEAVES", leaves)]))
    lines_until(worker, b"leaves")

    phase = drain_steps.end_wrapped(node, JOB, deadline_s=60, say=quiet)

    assert (phase.done, phase.failed) == ((), ())
    assert b"has left" in worker.stdout.read()
    assert real_nsys.nvtx_ranges(report, tmp_path, ended=True) == ["train"] * 20


@pytest.mark.nsys
def test_an_open_session_window_is_closed_and_its_report_found(nsys, node, start, tmp_path, monkeypatch):
    """Also by who was started on storage that hangs, and once an `nsys stop` has hung."""
    need("fuse")
    output = str(node / "tmp/policy_worker_rank0_step3-4_n1_7.nsys-rep")

    def opened():
        env = {**os.environ, "TMPDIR": str(node / "tmp")}
        argv = ["nsys", "start", f"--session={session}", "-o", output, "-s", "none", "--cpuctxsw=none"]
        done = subprocess.run(argv, env=env, capture_output=True, text=True, timeout=60)
        said.append(done.stdout + done.stderr)
        return drain_steps.collecting(node, JOB)

    # nsys 2023.4 now and then hangs on a busy machine before it has begun the program; a session that is left
    # keeps its name.
    said = []
    for attempt, seconds in enumerate((30, 60, 60)):
        session = f"rlprof-{JOB}-w{attempt}"
        launch = ["nsys", "launch", f"--session-new={session}", "-t", "nvtx"]
        worker = start([*launch, sys.executable, "-c", TRAINER, "", "30"])
        if poll(opened, seconds, pause_s=0.3):
            break
        processes.end(processes.of_job(JOB, node), grace_s=1)
        said.append(f"of {worker.args}: {worker.poll()}")
    assert drain_steps.collecting(node, JOB) == {session: str(node / "tmp")}, said[-5:]
    assert drain_steps.collecting(node, "other") == {}
    lines_until(worker, b"done")

    with monkeypatch.context() as patch:
        patch.setenv("RLPROF_NSYS", str(hanging_nsys(tmp_path, "stop*")))
        stuck = drain_steps.close_windows(node, JOB, deadline_s=2, most_s=60, gate_first_s=0, say=quiet)
    assert len(stuck.failed) == 1
    assert stuck.seconds < 25, "the agent of the session waits too, and that is no progress"

    home = tmp_path / "home"
    home.mkdir()
    monkeypatch.chdir(home)
    with hung(home):
        closed = drain_steps.close_windows(node, JOB, gate_first_s=0, say=quiet)
    waited = drain_steps.wait_profilers(node, JOB, say=quiet)
    recovered = drain_steps.recover(node, say=quiet)

    assert closed.done == (session,) and not closed.failed
    assert not waited.failed and waited.seconds < 10
    assert recovered.done == (
        "profiles/nsight/policy_worker/rank0/policy_worker_rank0_step3-4_n1_7.nsys-rep",
    )
    assert worker.poll() is None  # the trainer went on


@pytest.mark.nsys
def test_raw_captures_of_a_capture_range_become_reports_named_by_their_window(nsys, node, start, tmp_path):
    session = f"rlprof-{JOB}-c"
    argv = real_nsys.command(
        tmp_path / "out",
        f"--session-new={session}",
        "--capture-range=nvtx",
        "--nvtx-capture=capture@rlprof",
        "--capture-range-end=repeat",
        run=[sys.executable, "-c", TRAINER, "3,7", "8"],
    )
    worker = start(argv, env={"NSYS_NVTX_PROFILER_REGISTER_ONLY": "0"})
    lines_until(worker, b"done")
    wait_until(lambda: len(list((node / "tmp").glob("*.qdstrm"))) >= 2)
    trainer = next(
        found.pid
        for found in processes.of_job(JOB, node)
        if found.argv[1:2] == ("-c",) and "nsys" not in found.argv[0]
    )
    subprocess.run(
        ["nsys", "shutdown", "--kill=none", f"--session={session}"],
        env={**os.environ, "TMPDIR": str(node / "tmp")},
        capture_output=True,
        timeout=60,
    )
    event_log(node, trainer, 7, 8)

    phase = drain_steps.recover(node, say=quiet)

    assert not phase.failed
    named = f"profiles/nsight/policy_worker/rank1/policy_worker_rank1_step7-7_n1_{trainer}.nsys-rep"
    assert named in phase.done and len(phase.done) == 2  # the other one fits no open window
    contents = look(node / named)
    assert (contents.steps, contents.pids) == ({7}, {trainer})
    assert drain_steps.recover(node, say=quiet).done == ()


@pytest.mark.nsys
@pytest.mark.parametrize("folder", ["tmp", "inplace/nsight/policy_worker/rank0"])
@pytest.mark.parametrize("left", ["all", "half"])
def test_a_report_beside_its_raw_capture_is_one_report(nsys, node, tmp_path, monkeypatch, folder, left):
    """nsys 2023.4 keeps both where its importer fails, also after it has written the whole report. Half a
    report need not hold the secret that the whole one is exchanged for.
    """
    secret = "tk-5f0cc3b1e8d24a97"
    monkeypatch.setenv("MODEL_HUB_TOKEN", secret)
    breaks = "exit 1" if left == "all" else 'truncate -s 20000 "$4"; exit 1'
    (node / folder).mkdir(parents=True, exist_ok=True)
    name = "policy_worker_rank0_step3-4_n1_7"
    program = [sys.executable, "-c", TRAINER.replace("60", "0"), "3", "4"]
    argv = real_nsys.command(node / folder / name, "--force-overwrite=true", run=program)
    argv[0] = str(slow_nsys(tmp_path / "nsys", after=breaks))
    real_nsys.run_well(argv, {**os.environ, "TMPDIR": str(tmp_path)})
    assert {path.name for path in (node / folder).iterdir()} == {f"{name}.nsys-rep", f"{name}.qdstrm"}
    os.utime(node / folder / f"{name}.nsys-rep", (1e9, 1e9))
    (tmp_path / "run").mkdir()
    syncer = Syncer(node, tmp_path / "run", "n1")
    for _ in range(2):  # it comes home before the drain, unless it is in `tmp`
        syncer.pass_()

    phase = drain_steps.recover(node, say=quiet)

    assert not phase.failed
    [report] = node.rglob("*.nsys-rep")
    home = "profiles/nsight/policy_worker/rank0"
    assert report == node / (home if folder == "tmp" else folder) / f"{name}.nsys-rep"
    assert phase.done == ((f"{home}/{name}.nsys-rep",) if folder == "tmp" or left == "half" else ())
    assert look(report).steps == {1, 2, 3, 4}
    aside = [f"{name}.qdstrm.imported"] if folder == "tmp" else []
    assert [path.name for path in node.rglob("*.qdstrm*")] == aside
    assert drain_steps.recover(node, say=quiet).done == ()
    assert syncer.pass_(last=True).failed == []
    [copy] = (tmp_path / "run").rglob("*.nsys-rep")
    assert copy.read_bytes() == report.read_bytes()
    assert secret.encode() not in copy.read_bytes()


@pytest.mark.nsys
def test_a_raw_capture_that_was_cut_is_reported_and_kept(nsys, node):
    (node / "tmp/nsys-report-1.qdstrm").write_bytes(b"half of a capture" * 100)
    phase = drain_steps.recover(node, say=quiet)
    [(path, reason)] = phase.failed
    assert (phase.done, path) == ((), "tmp/nsys-report-1.qdstrm")
    assert "QdstrmImporter" in reason
    assert (node / "tmp/nsys-report-1.qdstrm").exists()
    assert not any((node / ".recover").rglob("*"))


@pytest.mark.nsys
def test_the_importer_is_found(nsys):
    assert find_importer() is not None


def test_a_report_whose_process_ended_in_moving_it_comes_home_once(node):
    name = "policy_worker_rank0_step3-4_n1_7.nsys-rep"
    home = node / "profiles/nsight/policy_worker/rank0"
    home.mkdir(parents=True)
    (home / name).write_bytes(b"another window of the same steps")
    in_moving = node / "tmp" / name
    in_moving.write_bytes(b"whole")
    os.link(in_moving, home / "policy_worker_rank0_step3-4_n1_7.1.nsys-rep")

    phase = drain_steps.recover(node, say=quiet)

    assert not phase.failed and not in_moving.exists()
    assert {path.name: path.read_bytes() for path in home.iterdir()} == {
        name: b"another window of the same steps",
        "policy_worker_rank0_step3-4_n1_7.1.nsys-rep": b"whole",
    }


def test_without_nsys_there_is_nothing_to_close(node, monkeypatch):
    monkeypatch.setenv("RLPROF_NSYS", "/nowhere/nsys")
    assert drain_steps.close_windows(node, JOB, say=quiet).done == ()
    assert drain_steps.recover(node, say=quiet).failed == ()


def test_only_collecting_sessions_of_the_job_are_seen():
    listing = """              ID         TIME                       STATE LAUNCH NAME
         1012286        00:03                  Collection      1 rlprof-9-a
         1012287        00:03                    Launched      1 rlprof-9-b
         1012288        00:03                  Collection      1 rlprof-99-a
         1012289        00:03                  Collection      1 profile-1
"""
    assert drain_steps.sessions_of(listing, "9") == ["rlprof-9-a"]


def test_a_report_that_is_still_being_written_is_not_called_finished(node):
    report = node / "tmp/policy_worker_rank0_step3-4_n1_7.nsys-rep"
    with open(report, "wb") as stream:
        stream.write(b"half")
        stream.flush()
        phase = drain_steps.recover(node, say=quiet)
        assert (phase.done, phase.failed) == ((), (("tmp/" + report.name, "it is still being written"),))
    assert drain_steps.recover(node, say=quiet).done == (
        f"profiles/nsight/policy_worker/rank0/{report.name}",
    )


def test_reap_ends_exactly_this_jobs_processes(node, start, tmp_path):
    stubborn = start(
        [
            sys.executable,
            "-c",
            "import signal, time; signal.signal(15, signal.SIG_IGN); print('up', flush=True); time.sleep(60)",
        ]
    )
    mine = start(["sleep", "60"])
    other_job = start(["sleep", "60"], job=JOB + "1")
    other_folder = start(["sleep", "60"], env={"RLPROF_NODE_DIR": str(tmp_path / "else")})
    spared = start(["sleep", "60"])
    lines_until(stubborn, b"up")
    phase = drain_steps.reap(JOB, node, grace_s=0.3, exclude=[spared.pid], say=quiet)
    assert not phase.failed and len(phase.done) == 2
    assert stubborn.wait(5) == -signal.SIGKILL and mine.wait(5) == -signal.SIGTERM
    assert [process.poll() for process in (other_job, other_folder, spared)] == [None, None, None]
    for process in (other_folder, spared):
        process.kill()


def test_reap_knows_a_process_of_whose_environment_only_half_is_left(node, start):
    env = {name: value for name, value in os.environ.items() if name != "RLPROF_JOB"}
    half = subprocess.Popen(["sleep", "60"], env={**env, "RLPROF_NODE_DIR": str(node)})
    other = subprocess.Popen(
        ["sleep", "60"], env={**env, "RLPROF_JOB": JOB}
    )  # of the same job, of another node perhaps
    try:
        drain_steps.reap(JOB, node, grace_s=1, say=quiet)
        assert (half.wait(5), other.poll()) == (-signal.SIGTERM, None)
    finally:
        for process in (half, other):
            process.kill()
            process.wait()


def test_reap_knows_a_process_that_wrote_its_title_over_its_environment_by_its_log(node, start, tmp_path):
    log = f"open({str(node / 'logs/agent.log')!r}, 'a')"
    agent = start(
        [sys.executable, "-c", f"import time; log = {log}; time.sleep(60)"],
        env={"RLPROF_JOB": "", "RLPROF_NODE_DIR": ""},
    )
    for name in ("RLPROF_JOB", "RLPROF_NODE_DIR"):
        os.environ.pop(name, None)
    nameless = subprocess.Popen(
        [sys.executable, "-c", f"import time; log = {log}; print('up', flush=True); time.sleep(60)"],
        stdout=subprocess.PIPE,
    )
    lines_until(nameless, b"up")
    reading = (
        f"import time; log = open({str(node / 'logs/agent.log')!r}); print('up', flush=True); time.sleep(60)"
    )
    reader = subprocess.Popen([sys.executable, "-c", reading], stdout=subprocess.PIPE)
    try:
        lines_until(reader, b"up")
        drain_steps.reap(JOB, node, grace_s=10, say=quiet)
        assert nameless.wait(5) == -signal.SIGTERM
        assert (reader.poll(), agent.poll()) == (
            None,
            None,
        )  # who only looks, and who says that it is another job's
    finally:
        for process in (nameless, reader, agent):
            process.kill()
            process.wait()
            process.stdout.close()


def test_reap_does_not_end_itself_or_its_parents(node):
    code = (
        "import sys; from rlprof_ops.collect.drain import drain_steps; phase = drain_steps.reap(sys.argv[1],"
        " sys.argv[2], grace_s=0.2, say=print); print('alive', phase.done)"
    )
    env = {**os.environ, "RLPROF_JOB": JOB, "RLPROF_NODE_DIR": str(node), "PYTHONPATH": "python"}
    done = subprocess.run(
        ["bash", "-c", '"$@"; echo parent', "x", sys.executable, "-c", code, JOB, str(node)],
        env=env,
        capture_output=True,
        text=True,
        timeout=30,
    )
    assert "alive ()" in done.stdout and "parent" in done.stdout, done


def test_wait_profilers_ends_at_its_deadline_and_says_what_grows(node, start):
    start(
        [
            sys.executable,
            "-c",
            (
                f"import time\nwith open({str(node / 'tmp/nsys-report-1.qdstrm')!r}, 'ab', 0) as f:\n while"
                " True: f.write(b'x'); time.sleep(0.05)"
            ),
        ]
    )
    time.sleep(0.3)
    phase = drain_steps.wait_profilers(node, JOB, deadline_s=2, say=quiet)
    [(name, reason)] = phase.failed
    said = re.fullmatch(r"files still grow after (\d+(?:\.\d+)?) s", reason)
    assert name == "tmp" and said, reason
    assert 2 <= float(said[1]) <= 20, "its deadline, and what one look takes on a machine that has other work"


@pytest.mark.timed
def test_wait_profilers_returns_at_once_when_nothing_is_written(node):
    assert drain_steps.wait_profilers(node, JOB, say=quiet).seconds < 0.5


def test_the_node_record_lists_files_with_digests_and_what_stayed(node, tmp_path):
    run = tmp_path / "run"
    run.mkdir()
    (node / "profiles/nsight").mkdir()
    (node / "profiles/nsight/a.nsys-rep").write_bytes(b"1")
    syncer = Syncer(node, run, "n1")
    syncer.pass_(last=True)
    syncer.close()
    (node / "profiles/nsight/b.nsys-rep").write_bytes(b"late")
    drain_steps.write_node_record(
        node,
        run,
        "n1",
        {"job": "4711", "role": "head", "clean": True},
        recovered=["profiles/x"],
        failed=[("tmp/y", "no")],
    )
    record = json.loads((run / "nodes/n1.json").read_text())
    assert [(row["path"], row["state"], row["size_bytes"]) for row in record["files"]] == [
        ("profiles/nsight/a.nsys-rep", "copied", 1),
        ("profiles/nsight/b.nsys-rep", "left", 4),
    ]
    assert record["files"][0]["sha256"] == "6b86b273ff34fce19d6b804eff5a3f5747ada4eaa22f1d49c01e52ddb7875b4b"
    assert (record["job"], record["role"], record["recovered"], record["failed"]) == (
        "4711",
        "head",
        ["profiles/x"],
        [{"path": "tmp/y", "reason": "no"}],
    )


def test_a_record_without_a_run_folder_is_kept_on_the_node(node, tmp_path):
    with pytest.raises(OSError):
        drain_steps.write_node_record(node, tmp_path / "gone", "n1", {})
    assert (node / "keep/n1.json").exists()


def test_clear_spares_what_was_kept(node):
    (node / "profiles/a").write_bytes(b"1")
    with pytest.raises(OSError):
        drain_steps.write_node_record(node, node / "no such run folder", "n1", {})
    drain_steps.clear(node, say=quiet)
    assert [str(path.relative_to(node)) for path in node.rglob("*") if path.is_file()] == ["keep/n1.json"]
    (node / "keep/n1.json").unlink()
    drain_steps.clear(node, say=quiet)
    assert not node.exists()


def test_events_that_make_no_sense_are_left_out(node):
    (node / "events/a.jsonl").write_text('{"event": "opened"}\n7\n{\n')
    os.symlink("/etc/passwd", node / "events/b.jsonl")
    assert event_logs.read_node(node / "events") == []
