"""After a `RayJob` was submitted: wait for its summary without sacct; harvest and report as jobs of their
own.
"""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rlprof_ops.collect.harvest.manifest import Manifest
from rlprof_ops.errors import RlprofError
from rlprof_ops.host import foreign
from rlprof_ops.job import attempt, harvest_job
from rlprof_ops.slurm import client
from rlprof_ops.submitit_job import task_context
from rlprof_ops.submitit_job.run_summary import RunSummary
from rlprof_ops.words import limit

_ASK_EVERY_S = 5.0
_LOCAL_S = 1.0
_GRACE_S = 60.0  # for the result's file to come over from the node that wrote it


def wait_for(job: Any, seconds: float | None = None, progress: bool | None = None) -> RunSummary:
    """The first task's summary of a submitted RayJob; submitit's `job.results()[0]`, but it ends when the job
    does.

    submitit asks sacct alone: without accounting it waits for ever for a job that was killed. This asks
    squeue. `progress` prints a line to stderr at each change: nodes up, step, captures; None: where a person
    sees it, on a terminal or in a notebook. Raises RlprofError when the job ended without a result, or is not
    done after `seconds`.
    """
    first = job.task(0)
    show = _shower(job, progress)
    if type(job).__name__ != "SlurmJob":
        return _local_result(job, first, seconds, show)
    began = time.monotonic()
    gone_since: float | None = None
    while not first.paths.result_pickle.exists():
        now = time.monotonic()
        if seconds is not None and now - began > seconds:
            raise RlprofError(f"job {job.job_id} is not done after {limit(seconds)}")
        if _in_queue(str(job.job_id)):
            gone_since = None
        elif gone_since is None:
            gone_since = now
        elif now - gone_since > _GRACE_S:
            raise RlprofError(
                f"job {job.job_id} ended without a result: it was killed, or never started. Its last"
                f" words:\n{_tail(first.paths.stderr)}"
            )
        show()
        _sleep_until(first.paths.result_pickle, _ASK_EVERY_S)
    show()
    return _harvested(_result(first), seconds and began + seconds - time.monotonic())


def _harvested(summary: RunSummary, seconds: float | None) -> RunSummary:
    """The summary with the manifest of the job that harvests, once that one has ended."""
    if not summary.harvest_job:
        return summary
    run, began = Path(summary.run_dir), time.monotonic()
    while _in_queue(summary.harvest_job) and harvest_job.named(run):
        if seconds is not None and time.monotonic() - began > seconds:
            raise RlprofError(f"the harvest, job {summary.harvest_job}, is not done yet")
        time.sleep(_ASK_EVERY_S)
    with contextlib.suppress(RlprofError):
        return replace(summary, manifest=Manifest.load(run))
    return summary


def _local_result(job: Any, task: Any, seconds: float | None, show: Callable[[], None]) -> RunSummary:
    """Of submitit's local executor; its debug executor runs the job when the result is asked for."""
    if type(job).__name__ == "LocalJob":
        began = time.monotonic()
        while not task.done():
            if seconds is not None and time.monotonic() - began > seconds:
                raise RlprofError(f"job {job.job_id} is not done after {limit(seconds)}")
            show()
            time.sleep(_LOCAL_S)
        show()
    return _result(task)


def _shower(job: Any, progress: bool | None) -> Callable[[], None]:
    """What prints a line at each change of the job; nothing while it has no run folder."""
    if progress is None:
        progress = sys.stderr.isatty() or "ipykernel" in sys.modules
    if not progress:
        return lambda: None
    from rlprof_ops.job.run_folder import find
    from rlprof_ops.operate.follow import Lines
    from rlprof_ops.operate.job_status import look

    lines = Lines(lambda text: print(text, file=sys.stderr, flush=True))

    def show() -> None:
        folder = run_folder_of(job)
        with contextlib.suppress(RlprofError):
            lines(look(find(str(folder) if folder.is_dir() else str(job.job_id))))

    return show


def _result(task: Any) -> RunSummary:
    found = task.result()
    if not isinstance(found, RunSummary):
        raise RlprofError(f"job {task.job_id} is no RayJob: its result is {type(found).__name__}")
    return found


def _sleep_until(path: Path, seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while not path.exists() and time.monotonic() < deadline:
        time.sleep(0.2)


def _in_queue(job: str) -> bool:
    """Whether Slurm has it waiting or running. True also when Slurm does not answer: that is no reason to
    give up.
    """
    try:
        done = client.squeue(f"--jobs={job}", "--format=%T")
    except RlprofError:
        return True
    if done.returncode:
        return "Invalid job id" not in done.stderr
    return bool(done.stdout.strip())


def _tail(path: Path, lines: int = 10) -> str:
    return "\n".join(foreign.tail(path).splitlines()[-lines:]) or f"(nothing in {path})"


def run_folder_of(job: Any) -> Path:
    """The newest run folder of a submitit job whose RayJob has no log_dir of its own."""
    cluster = "slurm" if type(job).__name__ == "SlurmJob" else "local"
    name = task_context.job_name(cluster, str(job.job_id))
    base = Path(job.paths.folder)
    return attempt.newest(base, name) or base / attempt.folder_name(name)


@dataclass(frozen=True)
class HarvestRun:
    """A follow-up job: makes the manifest of a run folder, and returns it.

    `HarvestRun.of(job)` for a job that was just submitted, with `slurm_additional_parameters={"dependency":
    f"afterany:{job.job_id}"}`. Raises RlprofError when there is no such run.
    """

    folder: str

    @classmethod
    def of(cls, job: Any) -> HarvestRun:
        return cls(str(run_folder_of(job)))

    def __call__(self) -> Any:
        from rlprof_ops.collect.harvest.run_harvest import harvest

        return harvest(newest(Path(self.folder)))


@dataclass(frozen=True)
class ReportRun:
    """A follow-up job: writes report.json and report.html of a run folder, and returns the answer (what
    report.json holds).
    """

    folder: str

    @classmethod
    def of(cls, job: Any) -> ReportRun:
        return cls(str(run_folder_of(job)))

    def __call__(self) -> dict[str, object]:
        from rlprof_ops.analyze.answer_file import as_data
        from rlprof_ops.analyze.reporting import report

        return as_data(report(newest(Path(self.folder))))


def newest(folder: Path) -> Path:
    """The last attempt's folder: the job may have been requeued after the follow-up was submitted."""
    job = attempt.job_of(attempt.of_folder(folder) or "")
    return (job and attempt.newest(folder.parent, job)) or folder
