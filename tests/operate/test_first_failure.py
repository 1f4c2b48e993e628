"""Real gloo ranks of which one fails: `rlprof status` names it, not those that fail after it."""

from __future__ import annotations

import json
import re
import shlex
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from rlprof_ops.cli import cli
from rlprof_ops.operate.first_failure import first_failure
from rlprof_ops.runtime.process.failures import OUT_OF_MEMORY
from tests.faults import memory
from tests.needs import need

# Four ranks, without Ray; who meets a closed connection prints a long trace after the one that counts.
PROGRAM = """
import os, signal, subprocess, sys, time
from pathlib import Path

if len(sys.argv) == 3:
    ranks = [subprocess.Popen([sys.executable, *sys.argv, str(rank)]) for rank in range(4)]
    sys.exit(any([rank.wait() for rank in ranks]))

import torch
import torch.distributed as dist

_, folder, how, rank = sys.argv
dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=int(rank), world_size=4)
mark = Path(os.environ["RLPROF_NODE_DIR"], f"events/notes_{os.getpid()}.jsonl")

def loss(step):
    if step == 5 and rank == "2":
        if how == "raises":
            raise ValueError("the loss is NaN")
        if how == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        sys.exit(0)
    return torch.ones(4)

while not mark.exists():
    time.sleep(0.1)
for step in range(10):
    dist.all_reduce(loss(step))
"""
# The same in Ray actors: whoever asks for the result gets the exception, and the others run into a timeout.
ACTORS = """
import os, sys, time
from datetime import timedelta
from pathlib import Path
import ray

folder = sys.argv[1]

@ray.remote(num_cpus=0)
class Rank:
    def __init__(self, rank):
        import torch.distributed
        self.rank = rank

    def joins(self):
        import torch.distributed as dist
        how = {"init_method": f"file://{folder}/store", "timeout": timedelta(seconds=20)}
        dist.init_process_group("gloo", rank=self.rank, world_size=4, **how)

    def noted(self):
        while not Path(os.environ["RLPROF_NODE_DIR"], f"events/notes_{os.getpid()}.jsonl").exists():
            time.sleep(0.1)

    def train(self):
        import torch
        import torch.distributed as dist
        for step in range(10):
            if step == 5 and self.rank == 2:
                raise ValueError("the loss is NaN")
            dist.all_reduce(torch.ones(4))

ray.init()
ranks = [Rank.remote(rank) for rank in range(4)]
ray.get([rank.__ray_ready__.remote() for rank in ranks])  # torch is imported: they begin together
ray.get([rank.joins.remote() for rank in ranks])
ray.get([rank.noted.remote() for rank in ranks])
asked = [rank.train.remote() for rank in ranks]
ray.wait(asked, num_returns=4)
ray.get(asked)
"""
FIRST = {
    "raises": r"rank 2 \(node \S+, pid \d+\) failed first, with ValueError: the loss is NaN; 3 other"
    " processes failed after it:",
    "killed": r"rank 2 \(node \S+, pid \d+\) died without a word first: the others met its closed"
    " connections; a process is killed so when memory is full",
    "ends": r"rank 2 \(node \S+, pid \d+\) has ended in order first: the others met its closed connections",
}


@pytest.mark.whole
@pytest.mark.ray
@pytest.mark.torch
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "how",
    [
        "raises",
        *(pytest.param(how, marks=pytest.mark.long) for how in FIRST if how != "raises"),
        "raises in an actor",
    ],
)
def test_the_rank_that_failed_first_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    pytest.importorskip("torch")
    pytest.importorskip("ray")
    from rlprof_ops.demo.local_job import run_local

    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    (tmp_path / "train.py").write_text(ACTORS if how == "raises in an actor" else PROGRAM)
    settings = {
        "COMMAND": shlex.join([sys.executable, "-u", str(tmp_path / "train.py"), str(tmp_path), how]),
        "RLPROF_REPORT_SECONDS": "0",
        "GPUS_PER_NODE": "0",
        "OMP_NUM_THREADS": "1",
    }
    said: list[str] = []
    result = run_local(tmp_path, settings, said.append)
    assert result.exit_code == 1, said
    status = CliRunner().invoke(cli, ["status", str(result.run.path)]).output
    found = re.search(FIRST[how.partition(" ")[0]], status)
    assert found and "onnection" not in status[: found.start()], (status, said)
    if how == "raises":
        assert f'File "{tmp_path}/train.py", line 19, in loss' in status, status


def notes(run: Path, *rows: dict[str, Any]) -> list[str]:
    folder = run / "nodes/n1/events"
    folder.mkdir(parents=True)
    for number, row in enumerate(rows):
        of = {"host": "n1", "pid": 10 + number, "t_ns": 5}
        told = [{"event": "in_group", "rank": number, **of}, {"event": "raised", **of, **row}]
        (folder / f"notes_{10 + number}.jsonl").write_text("\n".join(map(json.dumps, told)) + "\n")
    return [*first_failure(run)]


ECHOES = (
    "RuntimeError: [../third_party/gloo/gloo/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]",
    "DistBackendError: NCCL error: remote process exited or there was a network error, NCCL version 2.27",
    "DistNetworkError: Failed to recv, got 0 bytes. Connection was likely closed.",
    "DistBackendError: [Rank 1] Watchdog caught collective operation timeout",
    "RuntimeError: [gloo/transport/tcp/unbound_buffer.cc:81] Timed out waiting 1800000ms for recv operation",
    "DistBackendError: NCCL communicator was aborted on rank 2. Original reason for failure was: timeout",
    "DistBackendError: NCCL error in: NCCLUtils.hpp:268, remote error\nncclRemoteError: A call failed",
    "ActorDiedError: The actor died unexpectedly before finishing this task.",
)


@pytest.mark.parametrize("echo", ECHOES)
def test_an_echo_is_never_the_first(tmp_path: Path, echo: str) -> None:
    said = notes(
        tmp_path,
        {"error": echo, "t_ns": 1},
        {"error": "OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB", "t_ns": 2},
        {"error": "AcceleratorError: CUDA error: an illegal memory access was encountered", "t_ns": 3},
    )
    assert said == [
        "rank 1 (node n1, pid 11) failed first (GPU memory), with OutOfMemoryError: CUDA out of memory. Tried"
        " to allocate 2 GiB; 2 other processes failed after it:"
    ]


NCCL = "DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:3690, {}, NCCL version 2.27.7\n{}"


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        ("OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB", " (GPU memory)"),
        ("MemoryError: ", " (memory)"),
        ("AcceleratorError: CUDA error: an illegal memory access was encountered", " (CUDA)"),
        ("RuntimeError: CUDA error: CUBLAS_STATUS_EXECUTION_FAILED", " (CUDA)"),
        (
            NCCL.format("unhandled cuda error", "ncclUnhandledCudaError: Call to CUDA function failed."),
            " (CUDA, called by NCCL)",
        ),
        (
            NCCL.format("unhandled cuda error", "Last error:\nCuda failure 2 'out of memory'"),
            " (GPU memory)",
        ),
        (NCCL.format("invalid usage", "ncclInvalidUsage: Duplicate GPU detected"), " (NCCL)"),
        (NCCL.format("unhandled system error", "ncclSystemError: Call to socket failed"), " (NCCL)"),
        ("KeyError: 'loss'", ""),
    ],
)
def test_the_kind_of_a_failure(tmp_path: Path, error: str, kind: str) -> None:
    said = notes(tmp_path, {"error": error})
    assert said[0].startswith(f"rank 0 (node n1, pid 10) failed first{kind}, with "), said


def test_a_server_of_the_users_that_is_gone_is_no_echo(tmp_path: Path) -> None:
    [said] = notes(tmp_path, {"error": "ConnectionError: reward server: Connection refused by peer"})
    assert said.startswith("rank 0 (node n1, pid 10) failed first, with ConnectionError: reward server")


def test_what_makes_no_sense_is_left_out(tmp_path: Path) -> None:
    said = notes(tmp_path, {"error": 7, "t_ns": "x"}, {"event": [1]}, {"error": "KeyError: 'a\x1b[31m'"})
    assert said and "\x1b" not in said[0]


# Two ranks, of which one allocates until the kernel ends it in a memory control group of its own.
FILLS = """
import os, subprocess, sys, time
from pathlib import Path

if len(sys.argv) == 3:
    ranks = [subprocess.Popen([sys.executable, *sys.argv, str(rank)]) for rank in range(2)]
    sys.exit(any([rank.wait() for rank in ranks]))

import torch
import torch.distributed as dist

_, folder, group, rank = sys.argv
dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=int(rank), world_size=2)
mark = Path(os.environ["RLPROF_NODE_DIR"], f"events/notes_{os.getpid()}.jsonl")
while not mark.exists():
    time.sleep(0.1)
if rank == "1":
    Path(group, "cgroup.procs").write_text(str(os.getpid()))
    time.sleep(15)  # the recorder looks where it is
for step in range(10):
    if rank == "1" and step == 5:
        taken = [bytearray(os.urandom(1 << 20)) for _ in range(4096)]
    dist.all_reduce(torch.ones(4))
"""
LIMIT_MIB = 64


@pytest.mark.whole
@pytest.mark.ray
@pytest.mark.torch
@pytest.mark.timeout(600)
def test_a_rank_that_the_kernel_killed_for_memory_is_named_with_the_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    need("memory_cgroup")
    pytest.importorskip("torch")
    pytest.importorskip("ray")
    from rlprof_ops.demo.local_job import run_local

    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    (tmp_path / "train.py").write_text(FILLS)
    with memory.limited(LIMIT_MIB << 20) as group:
        settings = {
            "COMMAND": shlex.join(
                [sys.executable, "-u", str(tmp_path / "train.py"), str(tmp_path), str(group)]
            ),
            "RLPROF_REPORT_SECONDS": "0",
            "GPUS_PER_NODE": "0",
            "OMP_NUM_THREADS": "1",
        }
        said: list[str] = []
        result = run_local(tmp_path, settings, said.append)
    assert result.exit_code == 1, said
    status = CliRunner().invoke(cli, ["status", str(result.run.path)]).output
    killed = (
        r"rank 1 \(node \S+, pid \d+\) failed first \(memory\): the kernel killed it when its control group"
        rf" \S*/{re.escape(group.name)} reached its limit of {LIMIT_MIB}\.0 MiB"
    )
    found = re.search(killed, status)
    assert found and "onnection" not in status[: found.start()], status


def oom(pid: int, t_s: float) -> dict[str, Any]:
    return {"event": OUT_OF_MEMORY, "pid": pid, "t_ns": int(t_s * 1e9), "limit_bytes": 0, "group": "/job_7"}


@pytest.mark.parametrize(("seen_s", "first"), [(12.0, "rank 1"), (30.0, "rank 0")])
def test_a_kill_counts_by_its_time(tmp_path: Path, seen_s: float, first: str) -> None:
    """It is seen some seconds later than it was; an error that came long before it is the first."""
    said = notes(tmp_path, {"error": "KeyError: 'loss'", "t_ns": 10 * 10**9}, oom(11, seen_s))
    assert said[0].startswith(f"{first} (node n1, pid 1"), said
    assert ("the kernel killed it when its control group /job_7 had no memory left" in said[0]) == (
        seen_s < 20
    )


MINUTE, HOUR = 60.0, 3600.0
SLOW = "TimeoutError: reward server slow, retrying"
NAN = "ValueError: the loss is NaN"


def job(
    run: Path, *errors: tuple[int, str, float], until_s: float | None = None, said: str = ""
) -> list[str]:
    """Who failed first, where ranks had `errors` (rank, error, seconds), steps of a minute were told
    `until_s` and the driver `said` this last.
    """
    events = run / "nodes/n1/events"
    events.mkdir(parents=True)
    (run / "logs").mkdir()
    (run / "logs/driver.log").write_text(said)
    rows: list[dict[str, Any]] = [
        {"event": "in_group", "world": "w", "rank": rank, "pid": 10 + rank} for rank in range(3)
    ]
    rows += [
        {
            "event": "raised",
            "pid": 10 + rank,
            "error": error,
            "trace": f"Traceback\n{error}",
            "t_ns": int(s * 1e9),
        }
        for rank, error, s in errors
    ]
    (events / "notes_10.jsonl").write_text("\n".join(json.dumps({"host": "n1", **row}) for row in rows))
    if until_s is not None:
        steps = [
            {"event": "registered", "worker": "driver", "rank": 0, "pid": 9, "host": "n1"},
            *({"event": "step", "step": n, **step_ns(n)} for n in range(1, int(until_s // MINUTE) + 1)),
            {"event": "step", "step": 10**6, **step_ns(10**6), "cut": True},
        ]
        (events / "driver_0.jsonl").write_text("\n".join(map(json.dumps, steps)))
    return [*first_failure(run)]


def step_ns(number: int) -> dict[str, int]:
    """Of steps of a minute."""
    return {"begin_ns": int((number - 1) * MINUTE * 1e9), "end_ns": int(number * MINUTE * 1e9)}


@pytest.mark.parametrize("until_s", [None, 9 * HOUR])
def test_an_error_that_was_caught_is_not_the_failure(tmp_path: Path, until_s: float | None) -> None:
    """Where steps are told, by the steps after it; else by the time until the next error."""
    found = job(tmp_path, (1, SLOW, MINUTE / 2), (1, SLOW, MINUTE), (0, NAN, 9 * HOUR), until_s=until_s)
    assert found == [
        f"rank 0 (node n1, pid 10) failed first, with {NAN}:",
        "  Traceback",
        f"  {NAN}",
        f"earlier, and the job went on for 8.98 h: rank 1 (node n1, pid 11) raised {SLOW}; 1 other error"
        " before it",
    ]


@pytest.mark.parametrize("waited_s", [1.0, 35 * MINUTE, 5 * HOUR])
@pytest.mark.parametrize("until_s", [None, HOUR])
def test_the_first_of_a_chain_is_named_however_long_the_others_wait(
    tmp_path: Path, until_s: float | None, waited_s: float
) -> None:
    others = [(rank, ECHOES[3], HOUR + 30 + waited_s) for rank in (0, 2)]
    [found, *trace] = job(tmp_path, (1, NAN, HOUR + 30), *others, until_s=until_s)
    assert found == f"rank 1 (node n1, pid 11) failed first, with {NAN}; 2 other processes failed after it:"
    assert "the job went on" not in "".join(trace)


@pytest.mark.parametrize("until_s", [None, HOUR])
def test_another_error_that_follows_within_the_hour_is_no_sign_that_the_job_went_on(
    tmp_path: Path, until_s: float | None
) -> None:
    """Who waits for a rank may say so in words of its own."""
    found = job(tmp_path, (1, NAN, HOUR), (2, SLOW, HOUR + 35 * MINUTE), until_s=until_s)
    assert found[0].startswith("rank 1 (node n1, pid 11) failed first"), found


def test_a_step_that_runs_ahead_is_no_sign_that_the_job_went_on(tmp_path: Path) -> None:
    """The step after the error ended less than a minute after it."""
    found = job(tmp_path, (1, NAN, HOUR + 1), (0, SLOW, 2 * HOUR), until_s=HOUR + MINUTE)
    assert found[0].startswith("rank 1 (node n1, pid 11) failed first"), found


def test_what_the_driver_ended_with_is_the_failure_though_steps_followed(tmp_path: Path) -> None:
    """Asynchronous trainers take the steps that they have samples for. The same error was caught before."""
    errors = [(1, NAN, 5 * MINUTE), (1, NAN, HOUR), (0, SLOW, HOUR + 20 * MINUTE)]
    said = f"ray.exceptions.RayTaskError(ValueError): ray::Rank.train()\n  trace\n{NAN}\n"
    found = job(tmp_path, *errors, until_s=HOUR + 10 * MINUTE, said=said)
    assert found[0].startswith(f"rank 1 (node n1, pid 11) failed first, with {NAN}; 1 other process"), found
    assert found[-1] == f"earlier, and the job went on for 65.0 min: rank 1 (node n1, pid 11) raised {NAN}"


def test_a_caught_error_is_not_the_failure_though_the_driver_named_it_last(tmp_path: Path) -> None:
    found = job(tmp_path, (1, SLOW, HOUR), (0, NAN, 9 * HOUR), until_s=9 * HOUR, said=SLOW)
    assert found[0].startswith("rank 0 (node n1, pid 10) failed first"), found


@pytest.mark.parametrize("until_s", [None, 9 * HOUR])
def test_a_rank_that_dies_without_a_word_hours_after_a_caught_error(
    tmp_path: Path, until_s: float | None
) -> None:
    echoes = [(rank, ECHOES[0], 9 * HOUR) for rank in (0, 1)]
    found = job(tmp_path, (1, SLOW, MINUTE), *echoes, until_s=until_s)
    assert found[0].startswith("rank 2 (node n1, pid 12) died without a word first"), found
    assert found[1:] == [f"earlier, and the job went on for 8.98 h: rank 1 (node n1, pid 11) raised {SLOW}"]


def test_a_kill_that_the_job_outlived_is_not_the_failure(tmp_path: Path) -> None:
    errors = [{"error": NAN, "t_ns": int(9 * HOUR * 1e9)}, {"error": 7}, oom(12, HOUR)]
    found = notes(tmp_path, *errors)
    assert found[0] == f"rank 0 (node n1, pid 10) failed first, with {NAN}:"
    assert found[-1] == (
        "earlier, and the job went on for 8.00 h: rank 2 (node n1, pid 12) was killed for lack of memory"
    )
