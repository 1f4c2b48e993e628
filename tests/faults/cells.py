"""The rows of the fault matrix: how each job is brought to its end, and what must have become of it."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from tests.faults.job import Job
from tests.sandbox import SandboxError


def nothing(job: Job) -> None:
    """The fault is in the trainer itself."""


def finish(job: Job) -> None:
    job.go()


def cancel(job: Job) -> None:
    job.sandbox.run(["scancel", str(job.id)])


def cancel_step(job: Job) -> None:
    job.sandbox.run(["scancel", f"{job.id}.0"])


def two_signals(job: Job) -> None:
    job.sandbox.run(["scancel", "--signal=USR2", "--batch", str(job.id)])
    time.sleep(0.3)
    job.sandbox.run(["scancel", str(job.id)])


def kill_worker_node(job: Job) -> None:
    time.sleep(5)  # two syncs: what had ended before is home
    job.sandbox.kill_node("n2", noticed=True)


def kill_head_node(job: Job) -> None:
    time.sleep(5)
    job.sandbox.kill_node("n1", noticed=True)


def kill_supervisor(job: Job) -> None:
    """The drain of the other node is interrupted: its supervisor is killed right after the job was told to end."""
    job.sandbox.run(["scancel", "--signal=USR2", "--batch", str(job.id)])
    kill(job, "n2", "rlprof_ops.cluster.node")


def kill_sync(job: Job) -> None:
    for node in ("n1", "n2"):
        kill(job, node, "rlprof_ops.collect.sync")
    time.sleep(1)
    job.go()


def kill_agents(job: Job) -> None:
    """The nsys agents of one node; nsys cannot write the open window then, training goes on."""
    kill(job, "n2", "start-agent")
    time.sleep(1)
    job.go()


def kill_ray_head(job: Job) -> None:
    kill(job, "n1", "gcs_server")


def kill(job: Job, node: str, words: str) -> None:
    found = [process for process in job.sandbox.processes(node) if words in process.cmdline]
    if not found:
        raise SandboxError(f"no process with {words!r} on {node}: {[process.cmdline[:80] for process in job.sandbox.processes(node)]}")
    for process in found:
        job.sandbox.exec(node, ["kill", "-9", str(process.pid)], check=False)


@dataclass(frozen=True)
class Cell:
    """One way to end. `state`, `exit_code`: as Slurm says; `second`: allowed states of the window that was open, and a
    pattern of the reason; `gone`: nodes that are dead afterwards; `short`: part of `make test`."""

    name: str
    what: str
    state: str
    exit_code: int | None
    second: tuple[str, ...] = ("truncated", "missing")
    reason: str = "."
    fault: str = ""
    inject: Callable[[Job], None] = nothing
    args: tuple[str, ...] = ()
    gone: tuple[str, ...] = ()
    short: bool = False
    said: str = ""  # what the job's own output must hold


CELLS = (
    Cell("ok", "the driver ends with 0", "COMPLETED", 0, ("ok",), "^$", inject=finish, short=True),
    Cell("driver exits", "the driver ends with 7 in step 9", "FAILED", 7, reason="exit code 7", fault="exit7", short=True),
    Cell("driver killed", "the driver gets SIGKILL", "FAILED", 137, reason=r"signal 9 \(SIGKILL\)|exit code 137", fault="kill_driver"),
    Cell("worker dies", "one worker actor gets SIGKILL, the driver fails", "FAILED", 1, reason="exit code 1|ended while the window was open", fault="kill_actor"),
    Cell("scancel", "scancel of the job", "CANCELLED", None, reason="stopped|signal", inject=cancel, short=True),
    Cell("scancel step", "scancel of the step that holds the cluster: Slurm kills it outright", "FAILED", 137, reason="step that held the cluster was killed", inject=cancel_step),
    Cell("time limit", "the time limit of two minutes, with 30 s of notice", "FAILED", 140, reason="time limit", args=("--time=2", "--signal=B:USR2@30")),
    Cell("two signals", "notice of the time limit, then scancel at once", "CANCELLED", None, reason="time limit|stopped", inject=two_signals),
    Cell("node lost", "a node is cut off the power", "NODE_FAIL", None, reason="n2|lost|node|stopped", inject=kill_worker_node, gone=("n2",)),
    Cell("head lost", "the head node is cut off the power", "NODE_FAIL", None, reason="head node n1|node n1", inject=kill_head_node, gone=("n1",)),
    Cell("Ray's head dies", "the GCS gets SIGKILL", "FAILED", None, reason="Ray|node|exit code", inject=kill_ray_head),
    Cell("drain interrupted", "a node's supervisor gets SIGKILL while it drains", "FAILED", None, reason="n2|time limit", inject=kill_supervisor),
    Cell("sync killed", "both sync processes get SIGKILL, training goes on", "COMPLETED", 0, ("ok",), "^$", inject=kill_sync, said="sync ended with -9 while the job runs; starting it again"),
    Cell("agents killed", "the nsys agents of a node get SIGKILL, training goes on", "COMPLETED", 0, ("ok", "missing", "truncated", "recovered"), ".*", inject=kill_agents),
)
