"""The rows of the fault matrix: how each job is brought to its end, and what must have become of it."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from tests.faults.job import Job
from tests.faults.memory import out_of_memory
from tests.faults.trainer import HOLD
from tests.nsys_stand_in import slow_nsys
from tests.sandbox import Sandbox, SandboxError
from tests.supervisors import supervisor_of
from tests.waits import wait_until


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


def first_windows_home(job: Job) -> None:
    """What had ended before is home: a report of each rank and backend."""
    if job.stand_in:
        time.sleep(5)  # two of its syncs
        return
    first = "profiles/*/policy_worker/rank[01]/[!.]*_step2-3_*"
    wait_until(lambda: len(list(job.folder.glob(first))) >= 4, 120, job.output, pause_s=0.2)


def kill_worker_node(job: Job) -> None:
    first_windows_home(job)
    job.sandbox.kill_node("n2", noticed=True)


def kill_head_node(job: Job) -> None:
    first_windows_home(job)
    job.sandbox.kill_node("n1", noticed=True)


def kill_supervisor(job: Job) -> None:
    """The drain of the other node is interrupted: its supervisor and what keeps it are killed right after the
    job was told to end.
    """
    job.sandbox.run(["scancel", "--signal=USR2", "--batch", str(job.id)])
    if not job.stand_in:  # which has none
        kill(job, "n2", "rlprof_ops.supervisor")


def kill_sync(job: Job) -> None:
    for node in ("n1", "n2"):
        kill(job, node, "rsync -ahP" if job.stand_in else "rlprof_ops.collect.sync")
    time.sleep(1)
    job.go()


def kill_agents(job: Job) -> None:
    """The nsys agents of one node; nsys cannot write the open window then, training goes on."""
    kill(job, "n2", "start-agent")
    time.sleep(1)
    job.go()


def kill_ray_head(job: Job) -> None:
    kill(job, "n1", "gcs_server")


def full(sandbox: Sandbox) -> None:
    sandbox.fill()


def read_only(sandbox: Sandbox) -> None:
    sandbox.readonly()


def gone(sandbox: Sandbox) -> None:
    sandbox.vanish()


def storage_fails(break_it: Callable[[Sandbox], None]) -> Callable[[Job], None]:
    """The shared folder fails while the second window is open, and is back once both nodes have met that,
    training going on.
    """

    def inject(job: Job) -> None:
        break_it(job.sandbox)
        job.go()
        try:
            in_trouble(job)
        finally:
            job.sandbox.restore()

    return inject


def storage_fails_to_the_end(job: Job) -> None:
    job.sandbox.readonly()
    job.go()
    job.sandbox.wait(job.id, timeout=300)
    job.sandbox.restore()


def storage_hangs(job: Job) -> None:
    """No call to the shared folder returns on the nodes, until training has gone on well past the window."""
    job.sandbox.hang()
    job.go()
    try:
        job.wait_step(HOLD + 8)
    finally:
        job.sandbox.restore()


def storage_hangs_to_the_end(job: Job) -> None:
    """The same until the job has ended, so that nobody ever gets an answer."""
    job.sandbox.hang()
    job.go()
    job.sandbox.wait(job.id, timeout=300)
    job.sandbox.restore()


def supervisor_out_of_memory(job: Job) -> None:
    """The kernel kills the supervisor of a node, whose memory control group is full, and nothing else; the
    head's gets SIGKILL a moment later.
    """
    if not job.stand_in:  # which has none
        out_of_memory(supervisor_of(job.sandbox, "n2").host_pid)
        os.kill(supervisor_of(job.sandbox, "n1").host_pid, signal.SIGKILL)
    job.go()


def order_after_a_death(job: Job) -> None:
    """The head's supervisor is killed, and the job told to end before another one is at work. Sixty such
    times, without training: tests/whole_job/test_order_to_end.py.
    """
    if not job.stand_in:  # which has none
        os.kill(supervisor_of(job.sandbox, "n1").host_pid, signal.SIGKILL)
    time.sleep(random.uniform(0, 0.6))
    job.sandbox.run(["scancel", "--signal=TERM", "--batch", str(job.id)])


def with_importer(before: str, base: Path) -> dict[str, str]:
    """An nsys whose own importer runs `before` for each capture once the trainer holds."""
    nsys = slow_nsys(base / "nsys", f"[ ! -e {base}/progress.go ] || {{ {before}; }}")
    return {"RLPROF_NSYS": str(nsys)}


def in_trouble(job: Job, timeout_s: float = 180) -> None:
    """Wait until the sync of both nodes has said that the storage does not take what they have."""
    if job.stand_in:
        time.sleep(6)  # it says nothing: three of its turns
        return
    logs = lambda: {node: job.node_log(node, "sync.log") for node in ("n1", "n2")}  # noqa: E731
    wait_until(
        lambda: all("storage in trouble" in log for log in logs().values()), timeout_s, logs, pause_s=0.2
    )


def kill(job: Job, node: str, words: str) -> None:
    found = [process for process in job.sandbox.processes(node) if words in process.cmdline]
    if not found:
        raise SandboxError(
            f"no process with {words!r} on {node}:"
            f" {[process.cmdline[:80] for process in job.sandbox.processes(node)]}"
        )
    for process in found:
        job.sandbox.exec(node, ["kill", "-9", str(process.pid)], check=False)


@dataclass(frozen=True)
class Cell:
    """One way to end. `state`, `exit_code`: as Slurm says; `second`: allowed states of the window that was
    open, and a pattern of the reason; `gone`: nodes that are dead afterwards; `short`: part of `make
    test`; `seconds`: about how long.
    """

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
    seconds: float = 40
    trainer: tuple[str, ...] = ()
    knobs: tuple[tuple[str, str], ...] = ()
    local: bool = False  # the trainer says how far it is on its node, not in the shared folder
    umask: str = "0022"
    prepare: Callable[[Path], dict[str, str]] = lambda base: {}  # more knobs, given the folder of its files
    stays: bool = (
        False  # the node folders stay until a person brings them home with the command that the job has named
    )


NEW_WORKERS = ("--new-workers",)  # while the storage fails
LONGER = ("--steps", "45", "--seconds", "0.2", *NEW_WORKERS)  # so that the job still runs when it is back

CELLS = (
    Cell(
        "ok",
        "the driver ends with 0; submitted with a umask of 0077",
        "COMPLETED",
        0,
        ("ok",),
        "^$",
        inject=finish,
        umask="0077",
        short=True,
    ),
    Cell(
        "driver exits",
        "the driver ends with 7 in step 9",
        "FAILED",
        7,
        reason="exit code 7",
        fault="exit7",
        short=True,
    ),
    Cell(
        "driver killed",
        "the driver gets SIGKILL",
        "FAILED",
        137,
        reason=r"signal 9 \(SIGKILL\)|exit code 137",
        fault="kill_driver",
    ),
    Cell(
        "worker dies",
        "one worker actor gets SIGKILL, the driver fails",
        "FAILED",
        1,
        reason="exit code 1|ended while the window was open",
        fault="kill_actor",
    ),
    Cell(
        "scancel", "scancel of the job", "CANCELLED", None, reason="stopped|signal", inject=cancel, short=True
    ),
    Cell(
        "scancel step",
        "scancel of the step that holds the cluster: Slurm kills it outright",
        "FAILED",
        137,
        reason="step that held the cluster was killed",
        inject=cancel_step,
    ),
    Cell(
        "time limit",
        "the time limit of two minutes, with 30 s of notice",
        "FAILED",
        140,
        reason="time limit",
        args=("--time=2", "--signal=B:USR2@30"),
        seconds=130,
    ),
    Cell(
        "two signals",
        "notice of the time limit, then scancel at once",
        "CANCELLED",
        None,
        reason="time limit|stopped",
        inject=two_signals,
    ),
    Cell(
        "node lost",
        "a node is cut off the power",
        "NODE_FAIL",
        None,
        reason="n2|lost|node|stopped",
        inject=kill_worker_node,
        gone=("n2",),
    ),
    Cell(
        "head lost",
        "the head node is cut off the power",
        "NODE_FAIL",
        None,
        reason="head node n1|node n1",
        inject=kill_head_node,
        gone=("n1",),
    ),
    Cell(
        "Ray's head dies",
        "the GCS gets SIGKILL",
        "FAILED",
        None,
        reason="Ray|node|exit code",
        inject=kill_ray_head,
    ),
    Cell(
        "drain interrupted",
        "a node's supervisor and its keeper get SIGKILL while it drains",
        "FAILED",
        None,
        reason="n2|time limit",
        inject=kill_supervisor,
    ),
    Cell(
        "out of memory",
        "the kernel kills a node's supervisor for want of memory, and the head's gets SIGKILL",
        "COMPLETED",
        0,
        ("ok",),
        "^$",
        inject=supervisor_out_of_memory,
        said="another one took over",
    ),
    Cell(
        "order to end within 600 ms of a supervisor's death",
        "the head's supervisor gets SIGKILL, and 0 to 600 ms later SIGTERM comes for the job",
        "FAILED",
        143,
        reason="stopped|signal",
        inject=order_after_a_death,
        said="another one took over",
        short=True,
    ),
    Cell(
        "slow importer",
        "nsys's importer hangs from the second window on; `rlprof harvest` where it does not",
        "COMPLETED",
        0,
        ("ok", "recovered"),
        "",
        inject=finish,
        knobs=(
            ("RLPROF_CLOSE_WAIT_SECONDS", "3"),
            ("RLPROF_DRAIN_SECONDS", "24"),
            ("RLPROF_HARVEST_SECONDS", "8"),
            ("RLPROF_REPORT_SECONDS", "0"),
        ),
        prepare=partial(with_importer, "sleep 600"),
        said="raw captures that could not be imported are in",
        seconds=60,
    ),
    Cell(
        "long report",
        "nsys takes 30 s for a report, with 12 s for the drain (RLPROF_DRAIN_SECONDS)",
        "COMPLETED",
        0,
        ("ok", "recovered"),
        "",
        inject=finish,
        knobs=(("RLPROF_CLOSE_WAIT_SECONDS", "3"), ("RLPROF_DRAIN_SECONDS", "12")),
        prepare=partial(with_importer, "while (( SECONDS < 30 )); do :; done"),
        seconds=60,
    ),
    Cell(
        "sync killed",
        "both sync processes get SIGKILL, training goes on",
        "COMPLETED",
        0,
        ("ok",),
        "^$",
        inject=kill_sync,
        said="sync ended with -9 while the job runs; starting it again",
    ),
    Cell(
        "storage full",
        "the run folder is full, and is given room again while the job runs",
        "COMPLETED",
        0,
        ("ok",),
        "^$",
        inject=storage_fails(full),
        local=True,
        trainer=LONGER,
    ),
    Cell(
        "storage read-only",
        "the run folder is read-only for a while",
        "COMPLETED",
        0,
        ("ok",),
        "^$",
        inject=storage_fails(read_only),
        local=True,
        trainer=LONGER,
    ),
    Cell(
        "storage gone",
        "the run folder is gone for a while, as when a mount is lost",
        "COMPLETED",
        0,
        ("ok",),
        "^$",
        inject=storage_fails(gone),
        local=True,
        trainer=LONGER,
    ),
    Cell(
        "storage fails to the end",
        "the run folder is read-only from the second window on, and writable again after the job",
        "COMPLETED",
        0,
        ("ok",),
        "^$",
        inject=storage_fails_to_the_end,
        local=True,
        trainer=NEW_WORKERS,
        knobs=(("RLPROF_DRAIN_SECONDS", "24"),),
        stays=True,
        seconds=90,
    ),
    Cell(
        "storage hangs",
        "no call to the run folder, or to output_dir, returns for a while",
        "COMPLETED",
        0,
        ("ok",),
        "^$",
        inject=storage_hangs,
        local=True,
        trainer=LONGER,
        knobs=(("RLPROF_OUTPUT_DIR", "{base}/out"),),
    ),
    Cell(
        "storage hangs to the end",
        "no call to the run folder, or to output_dir, returns from the second window until the job has ended",
        "COMPLETED",
        0,
        ("ok",),
        "^$",
        inject=storage_hangs_to_the_end,
        local=True,
        trainer=NEW_WORKERS,
        knobs=(
            ("RLPROF_OUTPUT_DIR", "{base}/out"),
            ("RLPROF_CLOSE_WAIT_SECONDS", "5"),
            ("RLPROF_DRAIN_SECONDS", "12"),
        ),
        stays=True,
        seconds=120,
    ),
    Cell(
        "agents killed",
        "the nsys agents of a node get SIGKILL, training goes on",
        "COMPLETED",
        0,
        ("ok", "missing", "truncated", "recovered"),
        ".*",
        inject=kill_agents,
    ),
    Cell(
        "script with a profiler of its own",
        "each worker opens a torch.profiler of its own in step 9, whose trace is whole",
        "COMPLETED",
        0,
        ("ok", "truncated"),
        "^$|yielded to a torch.profiler of the program's own, which began in thread",
        fault="own_profiler",
        inject=finish,
        said="yielded to a torch.profiler of the program's own, which began in thread",
        short=True,
    ),
)
