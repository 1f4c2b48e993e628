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
        import torch.distributed as dist
        how = {"init_method": f"file://{folder}/store", "timeout": timedelta(seconds=20)}
        dist.init_process_group("gloo", rank=rank, world_size=4, **how)
        self.rank = rank

    def train(self):
        import torch
        import torch.distributed as dist
        while not Path(os.environ["RLPROF_NODE_DIR"], f"events/notes_{os.getpid()}.jsonl").exists():
            time.sleep(0.1)
        for step in range(10):
            if step == 5 and self.rank == 2:
                raise ValueError("the loss is NaN")
            dist.all_reduce(torch.ones(4))

ray.init()
ranks = [Rank.remote(rank) for rank in range(4)]
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
@pytest.mark.parametrize("how", [*FIRST, "raises in an actor"])
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
    time.sleep(6)  # the recorder looks where it is
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
