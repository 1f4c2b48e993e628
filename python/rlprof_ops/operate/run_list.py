"""The runs below a folder of logs: how many steps, how long they took, what was found, and how they ended."""

from __future__ import annotations

import contextlib
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from rlprof_ops.collect.harvest.manifest_table import printable
from rlprof_ops.collect.harvest.run_state import killed_here
from rlprof_ops.errors import RlprofError, UsageError
from rlprof_ops.host import foreign
from rlprof_ops.host.contained_dir import ContainedDir
from rlprof_ops.job.end_cause import EndCause
from rlprof_ops.job.run_folder import readable
from rlprof_ops.operate.recorded import read_summary
from rlprof_ops.words import duration

COLUMNS = ("job", "name", "began", "nodes", "steps", "median step", "findings", "end", "exit code")


@dataclass(frozen=True)
class Run:
    """One run folder. What its recorder tells is missing where there was none; times are UTC nanoseconds."""

    job: str
    path: str
    name: str = ""
    began_ns: int | None = None
    nodes: int = 0
    steps: int | None = None
    median_s: float | None = None
    findings: tuple[str, ...] = ()
    cause: str = ""
    exit_code: int | None = None

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def runs(root: Path) -> tuple[list[Run], list[Path]]:
    """Every run below `root`, or `root` itself, latest first; and the folders that this user may not read.

    Raises UsageError for what is no folder.
    """
    if not root.is_dir():
        raise UsageError(f"{root} is no folder; name the one that holds <job>-logs/")
    below = (path for path in sorted(root.iterdir()) if path.is_dir() and not path.is_symlink())
    folders = [root] if (root / "run.json").is_file() else below
    found, denied = list[Run](), list[Path]()
    for folder in folders:
        try:
            run = _read(folder)
        except RlprofError:
            denied.append(folder)
        else:
            found += [run] if run is not None else []
    return sorted(found, key=lambda run: run.began_ns or 0, reverse=True), denied


def _read(folder: Path) -> Run | None:
    """None for what is no record of a run. Raises RlprofError for a folder that may not be read."""
    readable(folder)
    record = foreign.read_object(folder / "run.json")
    if not foreign.text(record.get("job")):
        return None
    run = Run(
        job=record["job"],
        path=str(folder),
        name=foreign.text(record.get("job_name")),
        began_ns=foreign.whole(record.get("started_ns")),
        nodes=len(foreign.a_list(record.get("nodes"))),
        cause=foreign.text(foreign.an_object(record.get("end")).get("cause")),
        exit_code=foreign.whole(foreign.an_object(record.get("driver")).get("exit_code")),
    )
    with contextlib.suppress(OSError), ContainedDir(folder) as opened:
        if run.cause == EndCause.RUNNING and killed_here(opened, run.job, foreign.text(record.get("head"))):
            run = replace(run, cause=EndCause.NODE_LOST.value)
    with contextlib.suppress(RlprofError, PermissionError):
        told = read_summary(folder).data
        return replace(
            run,
            steps=told["step"],
            median_s=told["step_median_s"] or None,
            findings=tuple(finding["text"] for finding in told["findings"]),
        )
    return run


def row(run: Run) -> tuple[str, ...]:
    """A run as a line for people."""
    began = (
        "" if run.began_ns is None else time.strftime("%Y-%m-%d %H:%M", time.localtime(run.began_ns / 1e9))
    )
    cells = (
        run.job,
        run.name,
        began,
        str(run.nodes),
        "" if run.steps is None else str(run.steps),
        "" if run.median_s is None else duration(run.median_s * 1e9),
        str(len(run.findings)) if run.findings else "",
        run.cause,
        "" if run.exit_code is None else str(run.exit_code),
    )
    return tuple(printable(cell) for cell in cells)
