"""How a job stands: Slurm's word, the run folder's records and the workers' events as one `View`."""

from __future__ import annotations

import contextlib
import re
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from rlprof_ops.collect import job_state
from rlprof_ops.collect.harvest.expected import count_captures
from rlprof_ops.collect.harvest.manifest import WHOLE, Manifest
from rlprof_ops.collect.harvest.manifest_table import printable, printable_lines
from rlprof_ops.collect.harvest.run_state import Observed, observe
from rlprof_ops.collect.job_state import CaptureCounts, JobState
from rlprof_ops.errors import EXIT_FAILED, EXIT_INCOMPLETE, RlprofError
from rlprof_ops.host import foreign
from rlprof_ops.host.contained_dir import ContainedDir
from rlprof_ops.job import harvest_job
from rlprof_ops.job.end_cause import ORDER_EXIT, EndCause
from rlprof_ops.job.folders import RunFolder
from rlprof_ops.job.run_folder import Job

_CAUSE_EXIT: dict[str, int] = {
    **{str(cause): code for cause, code in ORDER_EXIT.items()},
    EndCause.NODE_LOST: EXIT_FAILED,
    EndCause.STARTUP_FAILED: EXIT_FAILED,
}
_UP = re.compile(r"\] (\d+) of (\d+) nodes are up")
_LOG_TAIL_BYTES = 1 << 20


@dataclass(frozen=True)
class View:
    """One look at a job.

    `state`: waiting, starting, running, ending, harvesting (it has ended, and the job that harvests it,
    `harvest_job`, is to come), ended, or unknown (no Slurm to ask, no word in the run folder). `slurm_state`
    is Slurm's own. `waiting`: resources that the driver waits for and nobody has.
    `step` is the last one that any profiled worker entered; times are UTC nanoseconds. `found`: what the
    recorder has found last.
    """

    job: str
    state: str
    slurm_state: str = ""
    reason: str = ""
    run_dir: str | None = None
    name: str = ""
    cause: str = ""
    detail: str = ""
    waiting: str = ""
    command: str = ""
    nodes: tuple[str, ...] = ()
    node_count: int = 0
    nodes_up: int | None = None
    elapsed: str = ""
    time_limit: str = ""
    step: int | None = None
    captures: CaptureCounts = field(default_factory=CaptureCounts)
    found: str = ""
    exit_code: int | None = None
    complete: bool | None = None
    harvest_job: str = ""

    @property
    def over(self) -> bool:
        return self.state == "ended"

    @property
    def has_ended(self) -> bool:
        """Over, but for its harvest."""
        return self.state in ("harvesting", "ended")

    @property
    def harvest(self) -> str:
        """How the job stands that harvests this one; empty without one."""
        if not self.harvest_job:
            return ""
        waits = f" waits in Slurm's queue ({self.reason or 'no reason given'})"
        return f"the harvest, job {self.harvest_job}," + (waits if self.reason else " runs")

    @property
    def lacks_reports(self) -> bool:
        """Whether a planned report is missing: by the manifest, or by its workers where nobody harvested."""
        if self.complete is None and self.over:
            return (self.captures.planned or 0) > self.captures.done
        return self.complete is False

    def exit_status(self) -> int:
        """For a command that reports on the job: 0 while it goes on or is whole, 1 failed, 3 a report is
        missing.
        """
        if not self.has_ended:
            return 0
        if self.lacks_reports:
            return EXIT_INCOMPLETE
        return EXIT_FAILED if self.exit_code else 0

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    def line(self) -> str:
        """`running 3/3 nodes, step 5, 4 of 9 captures`."""
        parts = [
            (
                self.state
                if not self.over
                else f"ended with exit code {self.exit_code}"
                if self.exit_code is not None
                else "ended"
            )
        ]
        if self.state == "harvesting":
            code = "" if self.exit_code is None else f" with exit code {self.exit_code}"
            parts[0] = f"ended{code}, {self.harvest}"
        if self.state == "waiting":
            parts[0] += f" in Slurm's queue ({self.reason or 'no reason given'})"
        if self.nodes_up is not None and not self.has_ended:
            parts.append(f"{self.nodes_up} of {self.node_count or len(self.nodes)} nodes up")
        if self.step is not None:
            parts.append(f"step {self.step}")
        if self.waiting and not self.has_ended:
            parts.append(f"the driver waits: {self.waiting}")
        if self.found and not self.over:
            parts.append(f"found: {self.found}")
        if self.run_dir and self.captures != CaptureCounts():
            parts.append(str(self.captures))
        return printable(", ".join(parts))


def look(job: Job) -> View:
    """How `job` stands now. Nothing is changed."""
    known = job.slurm
    view: dict[str, Any] = {
        "job": job.id,
        "run_dir": str(job.run) if job.run else None,
        "slurm_state": known.state if known else "",
        "reason": known.reason if known else "",
        "name": known.name if known else "",
        "node_count": known.node_count if known else 0,
        "elapsed": known.elapsed if known else "",
        "time_limit": known.time_limit if known else "",
    }
    observed, state = _observe(job)
    if observed is not None:
        view |= _told(job, observed) if state is None else _told_by_head(observed, state)
    view["state"] = _state(job, observed)
    if view["state"] == "ended":
        if (coming := harvest_job.to_come(job.run)) is not None:
            reason = (coming.reason or "Priority") if coming.waiting else ""
            view |= {"state": "harvesting", "harvest_job": coming.id, "reason": reason, "complete": None}
        view["exit_code"] = known.exit_code if known and known.exit_code is not None else _told_code(observed)
    return View(**view)


def _observe(job: Job) -> tuple[Observed | None, JobState | None]:
    """What the run folder tells. Of a job that goes on the head's word alone, two files: a look costs the
    same at any size.
    """
    if job.run is None:
        return None, None
    with contextlib.suppress(RlprofError, OSError), ContainedDir(job.run) as run:
        state = None if job.slurm is not None and job.slurm.ended else job_state.read(run)
        if state is not None and (job.slurm is not None or job_state.is_fresh(state)):
            said = observe(run, of_head=True)
            if said.running or job.slurm is not None:
                return said, state
        return observe(run), None
    return None, None


def _told_by_head(observed: Observed, state: JobState) -> dict[str, Any]:
    return {
        **_end_and_nodes(observed),
        "nodes_up": state.nodes_up,
        "step": state.step,
        "captures": state.captures,
        "found": state.found,
    }


def _end_and_nodes(observed: Observed) -> dict[str, Any]:
    return {
        "cause": observed.cause,
        "detail": printable_lines(observed.detail),
        "waiting": printable(observed.waiting),
        "nodes": observed.nodes,
        "node_count": len(observed.nodes),
    }


def _told(job: Job, observed: Observed) -> dict[str, Any]:
    assert job.run is not None
    steps = [log.last_step for log in observed.logs if log.last_step]
    found: dict[str, Any] = {
        **_end_and_nodes(observed),
        "nodes_up": nodes_up(job.run),
        "step": max(steps, default=None),
        "captures": count_captures(observed),
    }
    with contextlib.suppress(RlprofError, OSError):
        manifest = None if observed.running else Manifest.load(job.run)
        if manifest is not None:
            found["captures"] = _from_manifest(manifest)
            found["complete"] = manifest.complete
            found["found"] = str(manifest.findings[-1].get("text", "")) if manifest.findings else ""
    return found


def _from_manifest(manifest: Manifest) -> CaptureCounts:
    whole = sum(capture.state in WHOLE for capture in manifest.captures)
    missing = sum(capture.state == "missing" for capture in manifest.captures)
    return CaptureCounts(len(manifest.captures), whole, 0, len(manifest.captures) - whole - missing, missing)


def _state(job: Job, observed: Observed | None) -> str:
    if job.slurm is not None:
        if job.slurm.ended:
            return "ended"
        if job.slurm.waiting:
            return "waiting"
    if observed is None:
        return "starting" if job.slurm is not None else "unknown"
    if not observed.running:
        return "ending" if job.slurm is not None else "ended"
    return "running" if observed.driver.started_ns or _has_attach(job) else "starting"


def _has_attach(job: Job) -> bool:
    """A cluster without a COMMAND is ready when one may attach to it."""
    return job.run is not None and RunFolder(job.run).attach_env.exists()


def _told_code(observed: Observed | None) -> int | None:
    if observed is None:
        return None
    if observed.cause == EndCause.DRIVER_EXIT:
        return observed.driver.exit_code
    return _CAUSE_EXIT.get(observed.cause)


def nodes_up(folder: Path) -> int | None:
    """The last count in the head's log; None before the first."""
    found = None
    for line in foreign.tail(folder / "logs" / "head.log", _LOG_TAIL_BYTES).splitlines():
        match = _UP.search(line)
        if match:
            found = int(match[1])
    return found
