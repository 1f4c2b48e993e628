"""Why a job failed, from what it left: the supervisor's message, the driver's last words, the batch output,
resources that nobody had.
"""

from __future__ import annotations

import errno
import os
import re
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from rlprof_ops.host import foreign
from rlprof_ops.job.end_cause import STEP_KILLED, EndCause
from rlprof_ops.job.run_folder import Job
from rlprof_ops.operate.first_failure import first_failure, last_exception
from rlprof_ops.operate.job_status import View
from rlprof_ops.recorder.detect.anomaly import HANG
from rlprof_ops.recorder.head_recorder import FINDINGS, FOLDER, read_rows
from rlprof_ops.runtime.on_demand.watcher import STACKS

_MOST_LINES = 6
# Our own lines that say what comes next, and srun's that say only that a task has ended.
_SAYS_NOTHING = re.compile(
    r"\[rlprof\] (run folder:|ended with exit code|no record of a clean end|harvest and report: job)|"
    r"srun: (error: .*: Exited with exit code|Terminating StepId|Force Terminated)|"
    r"slurmstepd(-\S+)?: error: \*\*\*"  # some daemons add their node: slurmstepd-n3
)


def why(job: Job, view: View) -> list[str]:
    """At most ten lines: what ended a job that failed, and where it is told. Empty for one that did not."""
    if not view.has_ended or not view.exit_code:
        return []
    return [*_lines(job, view), *_full(job.run)][:10]


def _lines(job: Job, view: View) -> Iterator[str]:
    if view.waiting:
        yield f"the driver waited: {view.waiting}"
    if not _began(job):
        yield from _of_batch(job)
        return
    dump, hung = _of_dumps(job)
    yield from _of_hang(job.run, bool(dump) and hung)
    if dump and hung:
        yield dump
    yield from () if job.run is None else first_failure(job.run)
    if view.detail and view.cause != EndCause.HANG:  # which its lines above tell
        yield from _last(view.detail.splitlines(), _MOST_LINES)
    if view.cause == EndCause.TIME_LIMIT:
        yield f"it ran into its time limit ({view.time_limit or 'of Slurm'})"
    elif view.cause == EndCause.SIGNAL and not view.detail.startswith(STEP_KILLED):
        yield "it was told to end (scancel, rlprof stop, or preempted)"
    if view.cause == EndCause.DRIVER_EXIT or (view.waiting and job.run is not None):
        yield from _of_driver(job)
    elif view.cause == EndCause.STARTUP_FAILED and not view.detail:
        yield from _of_log(job.run, "head.log")
    elif view.cause in ("", EndCause.RUNNING, EndCause.NODE_LOST):
        yield from _of_batch(job)
    if dump and not hung:
        yield f"when dumps were asked for: {dump}"


def _began(job: Job) -> bool:
    return job.run is not None and (job.run / "run.json").exists()


def _of_hang(run: Path | None, has_dumps: bool) -> Iterator[str]:
    """What stood still, where that was the last that the recorder found; dumps say more of a collective."""
    rows = [] if run is None else read_rows(run / FOLDER / FINDINGS, ("kind", "text"))
    if run is not None and rows and rows[-1]["kind"] == HANG:
        if not has_dumps or not foreign.an_object(rows[-1].get("evidence")).get("world"):
            yield str(rows[-1]["text"])
        folders = sorted((run / "control").glob(f"hang-step*.{STACKS}"))
        if folders:
            yield f"the stacks of all workers at that time: {folders[-1]}"


def _of_dumps(job: Job) -> tuple[str, bool]:
    """Whom a collective waited for, by the dumps of torch's flight recorder that came home, and whether the
    job hung: those that were asked for do not show that alone. "" where they tell nothing.
    """
    from rlprof_ops.analyze.hang.hang_text import explain
    from rlprof_ops.analyze.hang.hang_verdict import NO_HANG

    lines, answer = ([], {}) if job.run is None else explain(job.run)
    verdicts = foreign.a_list(answer.get("verdicts"))
    if lines and verdicts and verdicts[0]["kind"] not in NO_HANG:
        return f"{lines[0]} (rlprof hang {job.id})", bool(verdicts[0]["hung"])
    return "", False


def _of_driver(job: Job) -> Iterator[str]:
    """The driver's last lines, with the exception that it ended with where more was said after it."""
    if job.run is None:
        return
    path = job.run / "logs" / "driver.log"
    if foreign.an_object(foreign.read_object(job.run / "run.json").get("driver")).get("name"):
        return  # a program of `rlprof wrap` has its output where it was started
    lines = _tail(path)
    if not lines:
        yield f"the driver said nothing ({path} is empty)"
        return
    last = _last(lines, _MOST_LINES)
    named = last_exception(lines)
    yield f"the driver's last words ({path}):"
    if named and named not in last:
        yield f"  {named}"
        yield "  …"
    yield from (f"  {line}" for line in last)


def _of_log(run: Path | None, name: str) -> Iterator[str]:
    if run is not None:
        path = run / "logs" / name
        lines = _tail(path)
        if lines:
            yield f"the last words of {path}:"
            yield from (f"  {line}" for line in _last(lines, _MOST_LINES))


def _of_batch(job: Job) -> Iterator[str]:
    """The batch script's output: preflight, a container that does not start, Slurm's own messages."""
    path = Path(job.slurm.output) if job.slurm and job.slurm.output else None
    lines = [] if path is None else [line for line in _tail(path) if not _SAYS_NOTHING.match(line)]
    if lines:
        yield f"the job's output ({path}):"
        yield from (f"  {line}" for line in _last(lines, _MOST_LINES + 2))
        return
    yield from _of_log(job.run, "head.log")
    if job.slurm is not None:
        yield f"Slurm says {job.slurm.state}{f' ({job.slurm.reason})' if job.slurm.reason else ''}"
        if path is not None:
            yield f"the job's output {path} {'is empty' if path.exists() else 'was never written'}"


def _full(run: Path | None) -> Iterator[str]:
    """A line when nothing can be written where the run folder is: a full disk leaves no other trace."""
    if run is None or run.stat().st_uid != os.getuid():
        return
    try:
        with tempfile.TemporaryFile(dir=run) as file:
            file.write(b"\0" * 65536)
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            yield f"{run}: {error.strerror}: make room, or put run folders elsewhere (BASE_LOG_DIR)"


def _last(lines: Sequence[str], count: int) -> list[str]:
    return [line for line in lines if line.strip()][-count:]


def _tail(path: Path) -> list[str]:
    """The last lines of a log, without colours and control characters."""
    from rlprof_ops.collect.harvest.manifest_table import printable

    text = foreign.tail(path).replace("\r\n", "\n").replace("\t", "    ")
    return [printable(line.rpartition("\r")[2].rstrip()) for line in text.split("\n") if line.strip()]
