"""A node reads its reports beside the training: the answer is the one that the reports themselves give,
without nsys and without the reports; what does not belong to a report is never used.
"""

from __future__ import annotations

import contextlib
import gzip
import json
import os
import shutil
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests import real_nsys
from tests.analyze.shared import kernel, mark, real, write_trace
from tests.waits import wait_until

from rlprof_ops.analyze import readers
from rlprof_ops.analyze.columns import Trace
from rlprof_ops.analyze.distil import __main__ as distil
from rlprof_ops.analyze.readers import UnreadableReport, cache, read_report
from rlprof_ops.analyze.run.identity import find_reports
from rlprof_ops.collect.drain.node_record import build_node_record
from rlprof_ops.collect.sync.routes import goes_home
from rlprof_ops.collect.sync.sync_pass import Syncer
from rlprof_ops.host import processes

SECRET = f"hf_{uuid.uuid4().hex[:16]}"  # that no process of an earlier run knows
CAPTURED = """
import nvtx, time
for n in (3, 4):
    with nvtx.annotate(f'step {n}', domain='rlprof'):
        for phase, s in (('generation', 0.05), ('train', 0.1)):
            with nvtx.annotate(phase, domain='rlprof'):
                time.sleep(s)
"""


class Node:
    """A node folder, and the run folder that its sync fills."""

    def __init__(self, root: Path) -> None:
        self.path, self.run = root / "node", root / "4711-logs"
        for folder in ("profiles", "events", "logs", "sync", "tmp"):
            (self.path / folder).mkdir(parents=True)
        (self.run / "profiles").mkdir(parents=True)
        self._process: subprocess.Popen[bytes] | None = None

    def place(self, relative: str) -> Path:
        path = self.path / "profiles" / relative
        path.parent.mkdir(parents=True, exist_ok=True)
        return path

    def trace(self, relative: str = "torch/w/rank0/rank0.pt.trace.json") -> Path:
        """A real trace of a training, long enough to be worth it."""
        path = self.place(relative)
        path.write_bytes(gzip.decompress(real("torch/sampled_rank-0.json.gz").read_bytes()))
        assert path.stat().st_size > readers.SMALL_BYTES
        return path

    def start(self, memory_mib: int = 1024, **env: str) -> subprocess.Popen[bytes]:
        argv = [sys.executable, "-m", "rlprof_ops.analyze.distil"]
        argv += [f"--node-dir={self.path}", f"--memory-mib={memory_mib}"]
        with open(self.path / "logs/distil.log", "ab") as log:
            self._process = subprocess.Popen(argv, env=os.environ | env, stdout=log, stderr=log)
        return self._process

    def log(self) -> str:
        return (self.path / "logs/distil.log").read_text()

    def distil(self, *reports: Path, **env: str) -> None:
        """Run until all of them have their columns."""
        self.start(**env)
        wait_until(lambda: all(cache.cache_path(report).is_file() for report in reports), 120, self.log)
        self.end()

    def end(self) -> None:
        if self._process is not None:
            self._process.terminate()
            self._process.wait(90)
            self._process = None

    def sync(self) -> None:
        report = Syncer(self.path, self.run, "n1").pass_()
        assert not report.failed and report.target_error is None

    def home(self, report: Path) -> Path:
        return self.run / report.relative_to(self.path)


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    made = Node(tmp_path)
    yield made
    made.end()


def answer(run: Path, *options: str, **env: str) -> dict[str, Any]:
    """What `rlprof report` says, but for when and how fast it was made."""
    argv = [sys.executable, "-m", "rlprof_ops", "report", str(run), "--json", *options]
    done = subprocess.run(argv, capture_output=True, env=os.environ | env, check=False, timeout=250)
    assert done.returncode == 0, done.stderr.decode()
    told: dict[str, Any] = json.loads(done.stdout)
    for report in told["coverage"]["reports"]:
        del report["seconds"], report["size_bytes"]
    return {key: value for key, value in told.items() if key not in ("made_ns",)}


def captured(node: Node) -> Path:
    """A real report that holds `SECRET`, as nsys keeps the environment."""
    pytest.importorskip("nvtx")
    report = node.place("nsight/policy_worker/rank0/policy_worker_rank0_step3-4_n1_77.nsys-rep")
    real_nsys.profile(report, CAPTURED, API_TOKEN=SECRET)
    assert SECRET.encode() in report.read_bytes()
    return report


@pytest.mark.nsys
def test_the_answer_is_the_same_without_nsys_and_without_the_reports(node: Node, tmp_path: Path) -> None:
    nsys, torch = captured(node), node.trace()
    # First the sync: which secrets it finds in other processes of this machine may change at any moment.
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("API_TOKEN", SECRET)
        node.sync()
    node.distil(nsys, torch, API_TOKEN=SECRET)
    node.sync()
    assert SECRET.encode() not in node.home(nsys).read_bytes()

    without = {"PATH": str(tmp_path / "nothing"), "RLPROF_NSYS": ""}
    truth = answer(node.run, "--no-cache")
    assert len(truth["coverage"]["reports"]) == 2 and not truth["coverage"]["unread"]
    assert answer(node.run, **without) == truth

    for report in (nsys, torch):  # they have not arrived yet, their columns have
        node.home(report).rename(tmp_path / report.name)
    early = answer(node.run, **without)
    assert [report["path"] for report in early["coverage"]["reports"]] == [
        report["path"] for report in truth["coverage"]["reports"]
    ]
    assert early["anatomy"] == truth["anatomy"] and early["kernels"] == truth["kernels"]
    assert not any(report.is_trace for report in find_reports(node.run)), "no timeline without the file"


@pytest.mark.nsys
def test_a_secret_that_is_known_later_has_the_report_read_again(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    report = captured(node)
    node.start()  # it knows of no secret
    wait_until(lambda: cache.cache_path(report).is_file(), 120, node.log)
    with monkeypatch.context() as patch:
        patch.setenv("API_TOKEN", SECRET)
        node.sync()
    home = node.home(report)
    assert SECRET.encode() not in home.read_bytes()
    fits = lambda: cache.load(report, cache.digest(home)).trace is not None  # noqa: E731
    wait_until(fits, 120, node.log)
    time.sleep(2 * distil.LOOK_S + 1)
    assert node.log().count(report.name) == 2, "read again, once"
    node.sync()
    assert cache.load(home, cache.digest(home)).trace is not None
    assert SECRET.encode() not in cache.cache_path(home).read_bytes()


def test_a_report_that_was_exchanged_is_read_itself(node: Node) -> None:
    report = node.trace()
    node.distil(report)
    write_trace(report, [kernel("k", 10.0, 1.0), mark("step 3", 0.0, 50.0)] * 3000)
    assert report.stat().st_size > readers.SMALL_BYTES
    assert "SHA-256 differs" in cache.load(report, cache.digest(report)).why_not
    assert len(read_report(report).gpu) == 3000


def test_columns_of_another_version_are_not_used(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    report = node.trace()
    node.distil(report)
    monkeypatch.setattr(cache, "VERSION", cache.VERSION + 1)
    assert cache.load(report, cache.digest(report)).why_not.startswith("it is of version")
    report.unlink()
    with pytest.raises(UnreadableReport, match=r"is not here; .*not used: it is of version"):
        read_report(report)


def hostile(trace: Trace, report: Path, how: str) -> None:
    beside = cache.cache_path(report)
    if how == "no Parquet":
        beside.write_bytes(b"PAR1" + os.urandom(5000) + b"PAR1")
    elif how == "cut":
        beside.write_bytes(beside.read_bytes()[:-300])
    elif how == "a link":
        beside.rename(beside.with_name("elsewhere"))
        beside.symlink_to(beside.with_name("elsewhere"))
    else:
        values = getattr(trace.ranges, how).copy()
        values[0] = {"name": len(trace.names), "track": 1 << 30, "duration": -5, "start": 1 << 63 - 1}[how]
        msgspec.structs.force_setattr(trace.ranges, how, values)
        assert cache.store(trace, report, cache.digest(report), alone=True)


@pytest.mark.parametrize("how", ["no Parquet", "cut", "a link", "name", "track", "duration"])
def test_hostile_columns_are_left_alone_with_a_reason(node: Node, how: str) -> None:
    report = node.trace()
    truth = read_report(report, cache=False)
    cache.store(truth, report, cache.digest(report), alone=True)
    hostile(read_report(report, cache=False), report, how)
    found = cache.load(report, cache.digest(report))
    assert found.trace is None and (found.why_not or how == "a link")
    assert (read_report(report).ranges.name == truth.ranges.name).all()
    if how != "a link":
        hostile(read_report(report, cache=False), report, how)
        report.unlink()
        assert [found.alone for found in find_reports(node.path)] == [True]
        with pytest.raises(UnreadableReport, match=r"is not here; .* is not used: it is damaged"):
            read_report(report)


def test_a_cache_whose_report_was_removed_is_no_report(node: Node) -> None:
    (node.path / "run.json").write_text('{"job": "4711"}')  # columns are kept in run folders alone
    report, other = node.trace(), node.trace("torch/w/rank1/rank1.pt.trace.json")
    read_report(report)
    assert cache.cache_path(report).is_file()
    report.unlink()
    assert [found.path.rsplit("/", 1)[-1] for found in find_reports(node.path)] == [other.name]


@pytest.fixture
def hanging_nsys(tmp_path: Path) -> Path:
    program = tmp_path / "nsys"
    program.write_text("#!/bin/bash\nsleep 611 & sleep 611\n")
    program.chmod(0o755)
    return program


def test_the_drain_waits_for_nothing(node: Node, hanging_nsys: Path) -> None:
    node.place("nsight/w/rank0/w_rank0_step3-3_n1_7.nsys-rep").write_bytes(b"x" * 1000)
    process = node.start(RLPROF_NSYS=str(hanging_nsys))
    started = lambda: [p for p in everyone(node) if "611" in p.argv]  # noqa: E731
    wait_until(lambda: len(started()) >= 2, 150, node.log)
    before = time.monotonic()
    process.terminate()
    assert process.wait(120) == 0
    assert time.monotonic() - before < 90
    wait_until(lambda: not started(), 150, node.log)
    assert not (node.path / ".distil").exists()


def test_what_a_killed_reading_leaves_is_no_report_that_came_nowhere(node: Node, hanging_nsys: Path) -> None:
    """As when Slurm kills all processes of a node: its folder is cleared once the report itself is home."""
    report = node.place("nsight/w/rank0/w_rank0_step3-3_n1_7.nsys-rep")
    report.write_bytes(b"x" * 1000)
    process = node.start(RLPROF_NSYS=str(hanging_nsys))
    started = lambda: [p for p in everyone(node) if "611" in p.argv]  # noqa: E731
    wait_until(lambda: len(started()) >= 2, 150, node.log)
    left = next(path for path in node.path.rglob(report.name) if path != report)
    reading = [
        p.pid for p in everyone(node) if p.pid != process.pid and "rlprof_ops.analyze.distil" in p.argv
    ]
    for pid in (process.pid, *reading):
        os.kill(pid, signal.SIGKILL)
    process.wait(90)
    for one in started():
        with contextlib.suppress(ProcessLookupError):  # it ended when its parent did
            os.kill(one.pid, signal.SIGKILL)
    assert left.exists()
    node.sync()
    assert node.home(report).is_file()
    assert build_node_record(node.path, "n1", {"clean": True})["cleared"] is True


def everyone(node: Node) -> list[processes.Process]:
    """Processes that work for this node folder, by their environment or place."""
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            if str(node.path).encode() in Path("/proc", pid, "environ").read_bytes():
                argv = tuple(Path("/proc", pid, "cmdline").read_bytes().decode().split("\0")[:-1])
                found.append(processes.Process(int(pid), 0, argv[0] if argv else "", argv))
        except OSError:
            continue
    return found


def test_too_little_memory_costs_the_columns_alone(node: Node) -> None:
    report = node.trace()
    before = report.read_bytes()
    node.start(memory_mib=8)
    wait_until(lambda: node.log().count("ended with") == 2, 150, node.log)
    node.end()
    assert report.read_bytes() == before and not cache.cache_path(report).exists()
    assert list((node.path / "profiles").rglob("*.tmp")) == []


def test_a_node_without_pyarrow_says_so_once(node: Node) -> None:
    blocked = node.path.parent / "blocked"
    blocked.mkdir()
    (blocked / "sitecustomize.py").write_text(
        "import importlib.util as u\nreal = u.find_spec\n"
        "u.find_spec = lambda name, *a: None if name == 'pyarrow' else real(name, *a)\n"
    )
    path = os.pathsep.join([str(blocked), *filter(None, [os.environ.get("PYTHONPATH")])])
    assert node.start(PYTHONPATH=path).wait(150) == 0
    assert node.log().count("pyarrow not installed") == 1


def test_it_waits_while_a_window_is_open(node: Node, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    log = node.path / "events/policy_worker_rank0_n1.jsonl"
    rows = [
        {"event": "registered", "worker": "w", "rank": 0, "pid": os.getpid(), "host": "n1", "t_ns": 1},
        {"event": "opened", "backend": "nsight", "steps": [3, 5], "phase": None, "t_ns": 2},
    ]
    log.write_text("".join(json.dumps(row) + "\n" for row in rows))
    report = node.trace()
    looking = distil.Distiller(node.path, 1024)
    assert not looking.look() and not cache.cache_path(report).exists()
    closed = rows[1] | {"event": "closed", "t_ns": 3, "path": "profiles/x"}
    with open(log, "a") as file:
        file.write(json.dumps(closed) + "\n")
    assert looking.look() and cache.cache_path(report).is_file(), caplog.text
    assert not looking.look()


def test_columns_come_over_first_and_never_twice(node: Node) -> None:
    report = node.trace()
    node.distil(report)
    home = node.home(report)
    home.parent.mkdir(parents=True)
    assert not goes_home(str(cache.cache_path(report).relative_to(node.path))), "no drain waits for them"
    node.sync()
    assert cache.cache_path(home).stat().st_ctime_ns <= home.stat().st_ctime_ns
    shutil.rmtree(node.path / "sync")
    cache.store(read_report(home, cache=False), home, cache.digest(home))  # as `rlprof report` does
    node.sync()
    assert sorted(file.name for file in home.parent.iterdir()) == sorted(
        [home.name, cache.cache_path(home).name]
    )


def test_small_means_the_same_to_both() -> None:
    assert distil._LEAST_BYTES == readers.SMALL_BYTES
