"""The manifest: every planned capture with its state, every report that was found. The annotations of its
rows are what it is read back by, and what its JSON Schema is made of (`manifest_schema`).
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any

from rlprof_ops.errors import RlprofError
from rlprof_ops.host import foreign
from rlprof_ops.host.contained_dir import ContainedDir

SCHEMA = 1
FILE = "manifest.json"
STATES = ("ok", "recovered", "empty", "truncated", "missing")
WHOLE = ("ok", "recovered")

_A_PATH = {
    "minLength": 1,
    "pattern": "^[^/]",
    "not": {"type": "string", "pattern": r"(^|/)\.\.(/|$)"},
}
Count = Annotated[int, {"minimum": 0}]
Number = Annotated[int | None, {"minimum": 0}]
FilePath = Annotated[str, _A_PATH]
Interval = Annotated[
    tuple[float, ...],
    {
        "maxItems": 2,
        "description": "of a window inside a step: from when to when it was open, in seconds after what"
        " its `at` counts from; empty for another window",
    },
]


@dataclass(frozen=True, slots=True)
class Report:
    """One report file. `path` is relative to the run folder; `stop` is exclusive; unknown fields are None."""

    path: FilePath
    state: Annotated[str, {"enum": ["ok", "empty", "truncated"]}]
    size_bytes: Count
    backend: str | None = None
    sha256: Annotated[str | None, {"pattern": "^[0-9a-f]{64}$"}] = None
    reason: str = ""
    warning: Annotated[str, {"description": "what a person should know although the report is whole"}] = ""
    mtime_ns: int = 0
    node: str | None = None
    host: str | None = None
    pid: Number = None
    worker: str | None = None
    rank: Number = None
    start: int | None = None
    stop: int | None = None
    phase: str | None = None
    kind: Annotated[
        str | None,
        {"description": "who named the file: rlprof, nemo_rl, vllm, verl, rlinf, ray, torch, nsys"},
    ] = None
    mapped_by: Annotated[
        str,
        {
            "enum": ["name", "event", "record", "content", "guess"],
            "description": "on what worker, rank and steps rest",
        },
    ] = "name"
    partial: Annotated[bool, {"description": "the window was cut short"}] = False
    recovered: Annotated[bool, {"description": "made from a raw capture after its collection had ended"}] = (
        False
    )
    opened_ns: int | None = None
    closed_ns: int | None = None
    capture: Annotated[str | None, {"description": "id of the planned capture; null: outside the plan"}] = (
        None
    )
    taken_s: Interval = ()


@dataclass(frozen=True, slots=True)
class CaptureResult:
    """One planned capture and what became of it; `reason` is empty only when ok."""

    id: Annotated[str, {"description": "nsight/policy_worker/rank0/step3-4[/phase]"}]
    backend: Annotated[str, {"minLength": 1, "description": "one of ours, or of another package"}]
    worker: Annotated[str, {"description": "worker name; a pattern when no worker matched it"}]
    rank: Number
    start: Annotated[int, {"minimum": 1}]
    stop: Annotated[
        int | None,
        {"minimum": 1, "description": "exclusive; null: open, until the run ended"},
    ]
    phase: str | None
    state: Annotated[str, {"enum": list(STATES)}]
    reason: Annotated[str, {"description": "why, unless ok"}] = ""
    host: str | None = None
    report: Annotated[str | None, _A_PATH] = None
    more_reports: Annotated[
        tuple[FilePath, ...],
        {
            "description": "further reports of the same capture: of a worker that was restarted, or of"
            " another process of it (vLLM's engine beside its server), whose losses at the same time"
            " are the capture's reason"
        },
    ] = ()
    part: Annotated[
        str | None,
        {"description": "of a window inside a step: what was asked, e.g. generation+60s for 20s"},
    ] = None
    taken_s: Interval = ()
    asked_by: Annotated[
        str,
        {
            "description": "id of a capture that was asked while the job ran, on demand or by its `when`, and"
            " left no report; empty: planned"
        },
    ] = ""


@dataclass(frozen=True)
class Manifest:
    """All of it. `coverage` counts captures by state; `notes` are remarks about the whole job,
    `findings` what its recorder has found (docs/recorder.md), `heard` which trainer was recognised and what
    was heard of it, in one line."""

    job: Annotated[str, {"description": "Slurm job id, `.rN` after the Nth requeue, or local-<pid>"}]
    captures: tuple[CaptureResult, ...]
    reports: tuple[Report, ...]
    world: Annotated[dict[str, Count], {"description": "worker name -> number of ranks, as observed"}] = (
        field(default_factory=dict)
    )
    notes: Annotated[tuple[str, ...], {"description": "remarks about the whole job"}] = ()
    run_dir: str = ""
    findings: Annotated[
        tuple[dict[str, Any], ...],
        {"description": "what the flight recorder has found, as in recorder/findings.jsonl"},
    ] = ()
    heard: Annotated[
        str,
        {
            "description": "which trainer was recognised, which steps, phases and roles were heard of, and"
            " what not"
        },
    ] = ""
    running: Annotated[
        bool, {"description": "it was made while the job ran: what came later is not in it"}
    ] = False

    @property
    def coverage(self) -> dict[str, int]:
        counts = Counter(capture.state for capture in self.captures)
        return {
            "planned": len(self.captures),
            **{state: counts[state] for state in STATES},
            "unplanned": len(self.unplanned),
        }

    @property
    def unplanned(self) -> tuple[Report, ...]:
        return tuple(report for report in self.reports if report.capture is None)

    @property
    def complete(self) -> bool:
        """Every planned capture ended in a whole report."""
        return all(capture.state in WHOLE for capture in self.captures)

    def to_dict(self) -> dict[str, Any]:
        return {
            **self._head(),
            "captures": [_row(capture) for capture in self.captures],
            "reports": [_row(report) for report in self.reports],
        }

    def to_json(self) -> str:
        """One capture and one report a line; ASCII, so that names which are no UTF-8 survive (as surrogate
        escapes).
        """
        return "".join(self.lines())

    def lines(self) -> Iterator[str]:
        """The same piece by piece, so that a large manifest is never in memory twice."""
        yield "{\n"
        for key, value in self._head().items():
            yield f"{json.dumps(key)}: {json.dumps(value)},\n"
        yield from _array("captures", self.captures)
        yield ",\n"
        yield from _array("reports", self.reports)
        yield "\n}\n"

    def _head(self) -> dict[str, Any]:
        return {
            "schema": SCHEMA,
            "job": self.job,
            "running": self.running,
            "complete": self.complete,
            "coverage": self.coverage,
            "world": self.world,
            "heard": self.heard,
            "notes": list(self.notes),
            "findings": list(self.findings),
        }

    @classmethod
    def from_dict(cls, data: dict[str, Any], run_dir: str = "") -> Manifest:
        """The inverse of `to_dict`. Raises `RlprofError` for another schema or shape."""
        if not isinstance(data, dict) or data.get("schema") != SCHEMA:
            found = data.get("schema") if isinstance(data, dict) else None
            raise RlprofError(
                f"{run_dir}: the manifest has schema {found!r}, this version reads {SCHEMA}; run"
                " `rlprof harvest` again"
            )
        try:
            return replace(foreign.typed(data, cls), run_dir=run_dir)
        except ValueError as error:
            raise RlprofError(
                f"{run_dir}: the manifest is damaged ({error}); run `rlprof harvest` again"
            ) from error

    @classmethod
    def load(cls, run_dir: str | os.PathLike[str]) -> Manifest:
        """Read `manifest.json` of a run folder. Raises `RlprofError` when there is none."""
        path = Path(run_dir) / FILE
        try:
            return cls.from_dict(foreign.read(path), os.fspath(run_dir))
        except FileNotFoundError:
            raise RlprofError(f"{path} does not exist; run `rlprof harvest {run_dir}` first") from None
        except PermissionError:
            raise
        except (OSError, ValueError) as error:
            raise RlprofError(
                f"{path} is not JSON ({foreign.reason_of(error)}); run `rlprof harvest {run_dir}` again"
            ) from error

    @staticmethod
    def is_final(run_dir: Path) -> bool:
        """Whether a run folder has a manifest that was not made while its job ran, as `job::_is_final` of
        scripts/lib/job.sh asks it.
        """
        path = run_dir / FILE
        return path.exists() and foreign.read_object(path).get("running") is not True

    def write(self, run: ContainedDir) -> None:
        """Put it into the run folder in one step."""
        run.write_atomic_from(FILE, (line.encode() for line in self.lines()))


def _array(key: str, rows: Iterable[CaptureResult | Report]) -> Iterator[str]:
    yield f"{json.dumps(key)}: ["
    for number, row in enumerate(rows):
        yield (",\n  " if number else "\n  ") + json.dumps(_row(row))
    yield "]"


def _row(value: CaptureResult | Report) -> dict[str, Any]:
    return {name: getattr(value, name) for name in value.__slots__}
