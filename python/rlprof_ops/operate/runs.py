"""The runs below a folder of logs: how many steps, how long they took, what was found, and how they ended."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rlprof_ops.collect.harvest.manifest_table import printable
from rlprof_ops.errors import RlprofError
from rlprof_ops.operate.recorded import read_summary
from rlprof_ops.words import duration

_MOST_BYTES = 8 << 20
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


def runs(root: Path) -> list[Run]:
    """Every run below `root`, or `root` itself, latest first. Raises RlprofError for what is no folder."""
    if not root.is_dir():
        raise RlprofError(f"{root} is no folder; name the one that holds <job>-logs/")
    folders = [root] if (root / "run.json").is_file() else _folders(root)
    found = [run for folder in folders if (run := _read(folder)) is not None]
    return sorted(found, key=lambda run: run.began_ns or 0, reverse=True)


def _folders(root: Path) -> Iterator[Path]:
    for path in sorted(root.iterdir()):
        if path.is_dir() and not path.is_symlink() and (path / "run.json").is_file():
            yield path


def _read(folder: Path) -> Run | None:
    """None for what is no record of a run."""
    try:
        with open(folder / "run.json", "rb") as file:
            record = json.loads(file.read(_MOST_BYTES))
        driver, end = record.get("driver") or {}, record.get("end") or {}
        found = {
            "job": str(record["job"]),
            "path": str(folder),
            "name": str(record.get("job_name") or ""),
            "began_ns": record.get("started_ns"),
            "nodes": len(record.get("nodes") or ()),
            "cause": str(end.get("cause") or ""),
            "exit_code": driver.get("exit_code"),
        }
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
    with contextlib.suppress(RlprofError, OSError, KeyError, TypeError):
        told = read_summary(folder).data
        found |= {
            "steps": told["step"],
            "median_s": told["step_median_s"] or None,
            "findings": tuple(str(finding["text"]) for finding in told["findings"]),
        }
    return Run(**found)


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
