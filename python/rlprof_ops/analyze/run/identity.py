"""Which reports a run folder holds, and whose they are: (job, host, worker, rank, pid, window), never rank
alone.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

from rlprof_ops import backends
from rlprof_ops.analyze.columns import Origin
from rlprof_ops.analyze.run import step_log
from rlprof_ops.analyze.run.foreign_names import NAMELESS, told_by
from rlprof_ops.backends import report_names
from rlprof_ops.backends.report_names import ReportName
from rlprof_ops.collect.harvest.manifest_table import printable
from rlprof_ops.errors import UsageError
from rlprof_ops.host import foreign
from rlprof_ops.request import server_of
from rlprof_ops.words import counted

TRACE_SUFFIXES = (".nsys-rep", ".pt.trace.json.gz", ".pt.trace.json", ".json.gz", ".pickle")
_LISTED_ONLY = (".proto", ".pftrace")
_WANTED = f"{', '.join(TRACE_SUFFIXES)}, and .json and .sqlite that hold a trace"
_MEMORY = (".pickle", ".host-memory.json.gz")
_RANK_FOLDER = re.compile(r"rank(\d+)")
_HEAD_BYTES = 1 << 20  # of a trace, before its events: the list of process groups may be long
_EVENT_ARRAY = re.compile(rb'\s*\[\s*\{[^{}]{0,400}"ph"\s*:')
_FURTHER_NODE = re.compile(r"(?<=.)_node\d+\Z")
_MOST_REASONS = 3
_ABOVE_ALL = 10**9  # ranks, steps and pids, in names as in the ranges of a trace
_SKIP = {"ray", "logs", "nodes", ".secrets"}


@lru_cache(maxsize=4096)  # asked of each step and phase of every rank
def role_of(worker: str) -> str:
    """`rollout` of `rollout_tp1`, and of `rollout_node1`, a server on a further node; any other worker is a
    role of its own.
    """
    return _FURTHER_NODE.sub("", server_of(worker) or worker)


@dataclass(frozen=True)
class ReportFile:
    """One report file of a run. `path` is relative to the run folder; what its name does not tell is None."""

    path: str
    backend: str
    worker: str
    rank: int | None
    host: str
    pid: int | None
    start: int | None
    stop: int | None  # half-open; None: open or untold
    phase: str | None
    size_bytes: int
    modified_ns: int = 0
    clock: tuple[tuple[int, int, int], ...] = ()  # the job's steps in it: number, begin, end (Unix ns)
    alone: bool = False  # only its columns are here, as its node read them
    ordinal: int | None = None  # its rank, where neither its name nor what is in it says one
    members: tuple[tuple[int, str], ...] = ()  # processes that say of themselves who they are: pid, worker

    def completed(self, origin: Origin) -> ReportFile:
        """The same with what its own trace tells: the host, the rank, and that a name is but the host's."""
        told = self.rank if self.rank is not None else origin.rank if origin.rank >= 0 else self.ordinal
        rank = 0 if told is None or (self.rank is None and told == origin.pid) else told
        host = self.host or origin.host
        worker = NAMELESS if self.worker == origin.host else self.worker  # nsys' %h_%p
        worker = dict(self.members).get(origin.pid, worker)
        return replace(self, worker=worker, rank=rank, host=host)

    @property
    def readable(self) -> bool:
        return (
            self.backend == step_log.BACKEND
            or self.path.endswith(TRACE_SUFFIXES)
            or self.path.endswith((".json", ".sqlite"))
        )

    @property
    def is_trace(self) -> bool:
        """Whether it is here and has times to draw; a memory report has none."""
        return self.readable and not self.alone and not self.path.endswith(_MEMORY)


def find_reports(root: Path) -> tuple[ReportFile, ...]:
    """Every report below a run folder, or the one a file is; sorted by worker, rank, step and path.

    Raises `UsageError` when there is nothing to read.
    """
    if root.is_file():
        if not _is_report(root):
            raise UsageError(f"{root}: no report (looked for {_WANTED})")
        return (_as_harvested(_describe(root.parent, root), {}),)
    if not root.is_dir():
        raise UsageError(f"{root}: no such run folder or report file")
    base = root / "profiles" if (root / "profiles").is_dir() else root
    known = _harvested(root)
    found = [_as_harvested(_describe(root, path), known) for path in _walk(base)]
    if not found:
        if why := _told_missing(root):
            raise UsageError(f"{root}: no report came home: {why}")
        raise UsageError(
            f"{root}: no reports below it (looked for {_WANTED}). A run folder is <BASE_LOG_DIR>/<job>-logs;"
            " `rlprof harvest <run folder>` says what a job left and what is"
            " missing."
        )
    if root.joinpath("nodes").is_dir():
        found = _with_the_jobs_steps(found, step_log.read_step_logs(root))
        found = _with_members(found, step_log.read_members(root))
    return tuple(sorted(found, key=lambda r: (r.worker, r.rank or 0, r.start or 0, r.path)))


def _told_missing(root: Path) -> str:
    """Why each planned report of a run is missing, in its manifest's words; empty where it plans none."""
    captures = foreign.a_list(foreign.read_object(root / "manifest.json").get("captures"))
    reasons = [*dict.fromkeys(foreign.text(foreign.an_object(row).get("reason")) for row in captures)]
    more = (
        f"; and {counted(len(reasons) - _MOST_REASONS, 'reason')} more"
        if len(reasons) > _MOST_REASONS
        else ""
    )
    told = printable("; ".join(reasons[:_MOST_REASONS]))
    return f"{counted(len(captures), 'capture')} planned: {told}{more}" if captures else ""


def _with_the_jobs_steps(reports: list[ReportFile], logs: tuple[step_log.StepLog, ...]) -> list[ReportFile]:
    """The reports, each with the steps that its window holds, and the driver's where no profiler saw it."""
    if not logs:
        return reports
    driver = max(logs, key=lambda log: (len(log.steps), log.rank == 0))
    found = []
    for report in reports:
        clock = tuple(
            (step.step, step.begin_ns, step.end_ns)
            for step in driver.steps
            if report.start is not None
            and report.start <= step.step
            and (report.stop is None or step.step < report.stop)
        )
        found.append(replace(report, clock=clock))
    seen = {(report.host, report.pid) for report in reports if report.is_trace}
    if (driver.host, driver.pid) in seen or any(report.worker == driver.worker for report in reports):
        return found
    windows = {(report.start, report.stop) for report in found if report.clock}
    for start, stop in sorted(windows, key=lambda window: (window[0] or 0, window[1] or 0)):
        found.append(
            ReportFile(
                path=driver.path,
                backend=step_log.BACKEND,
                worker=driver.worker,
                rank=driver.rank,
                host=driver.host,
                pid=driver.pid,
                start=start,
                stop=stop,
                phase=None,
                size_bytes=0,
            )
        )
    return found


def _with_members(reports: list[ReportFile], members: dict[str, list[step_log.Member]]) -> list[ReportFile]:
    """The reports, each with those inner workers of its own server that ran on its host."""
    return [
        replace(
            report,
            members=tuple(
                (each.pid, each.worker) for each in mine if server_of(each.worker) == report.worker
            ),
        )
        if (mine := members.get(report.host, []))
        else report
        for report in reports
    ]


def _walk(base: Path) -> Iterator[Path]:
    """Report files below `base`; links are not followed, for names from nodes may be hostile."""
    for folder, subfolders, files in os.walk(base, followlinks=False):
        subfolders[:] = sorted(
            d for d in subfolders if not d.startswith(".") and not (folder == str(base) and d in _SKIP)
        )
        for name in sorted(files):
            path = Path(folder, name)
            report = report_names.report_of_columns(name)
            if report.endswith(TRACE_SUFFIXES) and report not in files and _stands_alone(path):
                yield path.with_name(report)
                continue
            if name.startswith((".", "timeline.")) or path.is_symlink():
                continue
            if name.endswith(".json") and f"{name}.gz" in files:  # the same, unpacked
                continue
            if _is_report(path, files):
                yield path


def _is_report(path: Path, beside: Sequence[str] = ()) -> bool:
    """By its name; a `.json` or `.sqlite` by what is in it."""
    return path.name.endswith((*TRACE_SUFFIXES, *_LISTED_ONLY)) or _is_bare_trace(path, beside)


def _stands_alone(columns: Path) -> bool:
    """Whether what a node read out of a report that is not here stands for it."""
    if columns.is_symlink() or not columns.is_file():
        return False
    from rlprof_ops.analyze.readers.cache import stands_alone

    return stands_alone(columns)


def _is_bare_trace(path: Path, beside: Sequence[str]) -> bool:
    """Whether a `.sqlite` or `.json` is a report of its own: no export of a report that lies beside it, and
    no other JSON.
    """
    if path.suffix == ".sqlite":
        return path.with_suffix(".nsys-rep").name not in beside and _begins(path, b"SQLite format 3")
    if path.suffix != ".json":
        return False
    try:
        with foreign.open_plain(path) as file:
            head = file.read(_HEAD_BYTES)
    except OSError:
        return False
    return b'"traceEvents"' in head or _EVENT_ARRAY.match(head) is not None


def _begins(path: Path, magic: bytes) -> bool:
    try:
        with foreign.open_plain(path) as file:
            return file.read(len(magic)) == magic
    except OSError:
        return False


def _describe(root: Path, path: Path) -> ReportFile:
    relative = path.relative_to(root)
    parts = relative.parts
    named = report_names.parse(path.name) or ReportName("", "")
    place = parts[parts.index("profiles") + 1 :] if "profiles" in parts[:-1] else parts
    backend = place[0] if len(place) > 2 else _backend_of(path.name)
    folder_rank = next(
        (int(m.group(1)) for part in reversed(place[:-1]) if (m := _RANK_FOLDER.fullmatch(part))), None
    )
    folder_worker = place[1] if len(place) > 3 else ""
    told = told_by(relative)
    if named.kind in ("torch", "nsys", "ray"):  # host, pid or chance: a folder may tell the worker
        told = told_by(relative.with_name("trace.json"))
    if not named.kind:
        named = replace(named, rank=told.rank, start=told.start, stop=told.stop)
    alone = not path.exists()
    found = (path.with_name(report_names.columns_of(path.name)) if alone else path).stat()
    return ReportFile(
        path=str(relative),
        backend=backend,
        worker=named.worker or folder_worker or told.worker,
        rank=named.rank if named.rank is not None else folder_rank,
        host=named.host or "",
        pid=named.pid,
        start=named.start,
        stop=named.stop,
        phase=named.phase,
        size_bytes=found.st_size,
        modified_ns=found.st_mtime_ns,
        alone=alone,
        ordinal=told.ordinal,
    )


def _harvested(root: Path) -> dict[str, dict[str, object]]:
    """What the harvest found out about each report (its manifest says more than a trainer's own file
    names).
    """
    rows = foreign.a_list(foreign.read_object(root / "manifest.json").get("reports"))
    return {str(row.get("path")): row for row in rows if isinstance(row, dict)}


def _as_harvested(report: ReportFile, known: dict[str, dict[str, object]]) -> ReportFile:
    row = known.get(report.path, {})

    def text(key: str, instead: str) -> str:
        return foreign.text(row.get(key)) or instead

    def number(key: str, instead: int | None) -> int | None:
        told = _number(row.get(key))
        return _number(instead) if told is None else told

    return replace(
        report,
        worker=text("worker", report.worker),
        host=text("host", report.host),
        backend=text("backend", report.backend),
        rank=number("rank", report.rank),
        pid=number("pid", report.pid),
        start=number("start", report.start),
        stop=number("stop", report.stop),
    )


def _number(told: object) -> int | None:
    """A rank, a step or a pid that a name or a manifest tells; None for what can be none."""
    number = foreign.whole(told)
    return number if number is not None and 0 <= number < _ABOVE_ALL else None


def _backend_of(name: str) -> str:
    found = backends.of_report(name)
    return found.name if found else backends.OF_TIMELINES
