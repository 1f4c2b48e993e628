"""The sync process: signals, parents that die, kill -9, storage that goes and comes back."""

import os
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from tests.waits import wait_until

from rlprof_ops.collect.sync import __main__ as sync_main
from rlprof_ops.collect.sync.__main__ import read_report
from rlprof_ops.job.knobs import Settings


def listening(pid):
    """The process hears its orders: SIGUSR2, which it ignores, comes last."""

    def ignored():
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
        mask = next(line.split()[1] for line in lines if line.startswith("SigIgn:"))
        return int(mask, 16) >> (signal.SIGUSR2 - 1) & 1

    wait_until(ignored, 60)


REPORT = "profiles/nsight/w/rank0/w_rank0_step3-4_n1_17.nsys-rep"


@pytest.fixture
def node(tmp_path):
    (tmp_path / "node/profiles/nsight/w/rank0").mkdir(parents=True)
    (tmp_path / "run").mkdir()
    return tmp_path / "node"


@pytest.fixture
def start(node):
    running = []

    def start(*more, prefix=()):
        argv = [
            *prefix,
            sys.executable,
            "-m",
            "rlprof_ops.collect.sync",
            "--node-dir",
            str(node),
            "--run-dir",
            str(node.parent / "run"),
            "--node",
            "n1",
            *more,
        ]
        process = subprocess.Popen(
            argv,
            env={**os.environ, "PYTHONPATH": "python"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        running.append(process)
        return process

    yield start
    for process in running:
        if process.poll() is None:
            process.kill()
        process.communicate()


def arrived(node):
    return (node.parent / "run" / REPORT).exists()


def test_a_pass_comes_every_interval(node, start):
    start("--interval", "1")
    (node / REPORT).write_bytes(b"1")
    wait_until(lambda: arrived(node))


def test_term_means_one_last_pass_and_exit_code_0(node, start):
    process = start("--interval", "0")
    (node / REPORT).write_bytes(b"1")
    listening(process.pid)
    assert not arrived(node)
    process.send_signal(signal.SIGTERM)
    assert process.wait(15) == 0
    assert arrived(node)
    assert read_report(node).last and "last pass: 1 file," in process.stdout.read()


def test_usr1_means_a_pass_now(node, start):
    process = start("--interval", "3600")
    (node / REPORT).write_bytes(b"1")
    listening(process.pid)
    process.send_signal(signal.SIGUSR1)
    wait_until(lambda: arrived(node))
    assert process.poll() is None


def test_a_parent_that_dies_means_the_last_pass(node, start):
    shell = start("--interval", "3600", prefix=("bash", "-c", '"$@" & echo $!; wait', "x"))
    (node / REPORT).write_bytes(b"1")
    listening(int(shell.stdout.readline()))
    shell.kill()
    wait_until(lambda: arrived(node))


def test_what_stays_behind_makes_the_exit_code_1(node, start):
    (node.parent / "run").rmdir()
    process = start("--interval", "0", "--deadline", "1")
    (node / REPORT).write_bytes(b"1")
    listening(process.pid)
    process.send_signal(signal.SIGTERM)
    assert process.wait(15) == 1
    assert "storage: " in process.stdout.read()
    assert (node / REPORT).exists()


def test_a_killed_sync_goes_on_where_it_was(node, start):
    for number in range(300):
        (node / f"{REPORT}.{number}.nsys-rep").write_bytes(os.urandom(200_000))
    run = node.parent / "run/profiles/nsight/w/rank0"
    process = start("--interval", "1")
    wait_until(lambda: run.is_dir() and len(os.listdir(run)) > 20)
    process.kill()
    process.wait()
    assert all(path.stat().st_size == 200_000 for path in run.iterdir())
    process = start("--interval", "0")
    listening(process.pid)
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 0
    assert all(
        (run / path.name).read_bytes() == path.read_bytes() for path in (node / REPORT).parent.iterdir()
    )
    assert not list((node.parent / "run/.sync").rglob("*-*"))


@pytest.mark.parametrize(
    "arguments", [("--interval", "abc"), ("--interval", "-3"), ("--interval", "5", "--node", "../x")]
)
def test_wrong_arguments_end_with_2_and_the_value(node, start, arguments):
    process = start(*arguments)
    output, _ = process.communicate(timeout=15)
    assert process.returncode == 2
    assert repr(arguments[-1]) in output


@pytest.mark.parametrize(
    ("knobs", "wanted"),
    [
        ({}, (4, 0.0, None)),
        ({"RLPROF_SYNC_KEEP_FREE_MIB": "0"}, (4, 0.0, 0)),
        (
            {
                "RLPROF_SYNC_PARALLEL": "9",
                "RLPROF_SYNC_BANDWIDTH_MIB": "0.5",
                "RLPROF_SYNC_KEEP_FREE_MIB": "2048",
            },
            (9, 0.5, 2048),
        ),
    ],
)
def test_a_jobs_knobs_reach_the_sync(tmp_path, knobs, wanted):
    place = SimpleNamespace(
        node="n1",
        nodes=("n1", "n2"),
        folder=SimpleNamespace(path=tmp_path),
        run=SimpleNamespace(path=tmp_path),
    )
    settings = Settings.load({"RAY_LOG_SYNC_FREQUENCY": "7", "RLPROF_DRAIN_SECONDS": "100", **knobs})

    read = sync_main._arguments(sync_main.sync_command(place, settings)[3:])

    assert (read.parallel, read.bandwidth_mib, read.keep_free_mib) == wanted
    assert (read.interval, read.deadline, read.node, read.nodes) == ("7", 50.0, "n1", 2)


def test_a_node_that_is_short_of_space_loses_what_is_safe(node, start):
    """The whole way of RLPROF_SYNC_KEEP_FREE_MIB: nothing has that much free space."""
    report = node / "profiles/nsight/w/rank0/w_rank0_step1-1_n1_5.nsys-rep"
    report.write_bytes(b"NVIDIA Nsight Systems" + bytes(1000))
    process = start("--interval", "1", "--keep-free-mib", str(1 << 40))

    wait_until(lambda: not report.exists())

    assert (node.parent / "run" / report.relative_to(node)).stat().st_size == 1021
    process.terminate()
    out, _ = process.communicate(timeout=30)
    assert process.returncode == 0 and "node is short of space: removed" in out
