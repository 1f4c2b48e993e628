"""From a run folder to its timeline files: reads what must be read, aligns, writes."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path

from rlprof_ops.analyze.run.clocks import Clocks, clocks_of, probes_of
from rlprof_ops.analyze.run.engine import default_workers
from rlprof_ops.analyze.run.hosts import told_apart, with_hosts
from rlprof_ops.analyze.run.identity import ReportFile, find_reports
from rlprof_ops.analyze.run.process_summary import Unread
from rlprof_ops.analyze.timeline import archive, legacy, overview, request_rows
from rlprof_ops.errors import RlprofError
from rlprof_ops.host import foreign
from rlprof_ops.job import own_files

OVERVIEW, RANKS, LEGACY = "timeline.overview.pftrace", "timeline.ranks.zip", "timeline.legacy.json.gz"


@dataclass(frozen=True)
class Made:
    """What was written, and what had to be left out and why."""

    files: tuple[Path, ...]
    left_out: tuple[tuple[str, str], ...]
    ranks: int
    residual_ns: int | None


def make(
    root: Path,
    output: Path | None = None,
    jobs: int | None = None,
    with_legacy: bool = False,
    cache: bool = True,
) -> Made:
    """Writes the overview and the archive of all ranks (and the legacy JSON) beside a run's reports.

    Raises `UsageError` when there are no reports, `RlprofError` when none can be read or the folder cannot be
    written.
    """
    reports = [report for report in find_reports(root) if report.is_trace]
    folder = root if root.is_dir() else root.parent
    target = own_files.output_folder(root, output)
    for name in (OVERVIEW, RANKS, *((LEGACY,) if with_legacy else ())):
        own_files.check_ours(target / name)
    parts, left_out = _read(folder, reports, jobs, cache)
    if not parts:
        raise RlprofError(
            f"{root}: none of its {len(reports)} reports can be read: "
            + "; ".join(f"{a}: {b}" for a, b in left_out[:3])
        )
    nodes = {path.stem: foreign.read_object(path) for path in sorted((folder / "nodes").glob("*.json"))}
    nodes_told = foreign.read_object(folder / "run.json").get("nodes")
    parts = with_hosts(parts, nodes_told if isinstance(nodes_told, list) else ())
    clocks = clocks_of(parts, probes_of(nodes))
    run = foreign.read_object(folder / "run.json")
    title = " ".join(
        filter(None, ("rlprof: ranks of", str(run.get("job_name") or ""), str(run.get("job") or folder.name)))
    )
    requests = list(request_rows.request_parts(folder, parts))
    parts, requests = told_apart(parts, requests), told_apart(requests, parts)
    try:
        target.mkdir(parents=True, exist_ok=True)
        files = [
            _replace(
                target / OVERVIEW,
                lambda path: _write_pieces(path, overview.encode([*parts, *requests], clocks, title)),
            )
        ]
        zipped = _members(folder, parts, clocks)
        attributes = {"rlprof.job": str(run.get("job") or ""), "rlprof.run": folder.name}
        whole = {folder / p.report.path: p.whole for p in parts}
        files.append(
            _replace(
                target / RANKS,
                lambda path: left_out.extend(archive.write_archive(path, zipped, attributes, whole.get)),
            )
        )
        if with_legacy:
            traces = [(m.source, m.machine, m.offset_ns) for m in zipped if isinstance(m.source, Path)]
            zero = min((int(row.start.min()) for p in parts for row in p.rows), default=0)
            files.append(
                _replace(
                    target / LEGACY, lambda path: left_out.extend(legacy.write_legacy(path, traces, zero))
                )
            )
    except OSError as error:
        raise RlprofError(
            f"{target}: cannot write the timeline ({error.strerror}). Give another folder with --output."
        ) from error
    return Made(tuple(files), tuple(left_out), len({p.label for p in parts}), clocks.residual_ns)


def _read(
    folder: Path, reports: list[ReportFile], jobs: int | None, cache: bool
) -> tuple[list[overview.Part], list[tuple[str, str]]]:
    budget = max(overview.MAX_SLICES // max(len(reports), 1), 64)
    count = min(jobs or default_workers(), len(reports))
    arguments = ([folder] * len(reports), reports, [budget] * len(reports), [cache] * len(reports))
    if count <= 1:
        found = list(map(overview.parts_of, *arguments))
    else:
        with ProcessPoolExecutor(count, mp_context=get_context("spawn")) as pool:
            found = list(pool.map(overview.parts_of, *arguments))
    parts = [part for read in found if not isinstance(read, Unread) for part in read]
    return parts, [(each.report.path, each.reason) for each in found if isinstance(each, Unread)]


def _members(folder: Path, parts: Sequence[overview.Part], clocks: Clocks) -> list[archive.ArchiveMember]:
    """The archive's files in order of worker and rank: torch traces as they are, nsys reports as Perfetto
    traces.
    """
    members = []
    ordered = sorted(
        parts, key=lambda p: (p.report.worker, p.rank, p.host, p.report.start or 0, p.report.path)
    )
    for number, part in enumerate(ordered):
        path = folder / part.report.path
        stem = re.sub(
            r"[^A-Za-z0-9._-]", "-", f"{number:04d}_{part.report.worker}_rank{part.rank}_{part.host}"
        )
        clock = clocks.of(part.host)
        middle = int(part.rows[0].start[0]) if part.rows else 0
        shift = clock.aligned(middle) - middle
        if part.report.path.endswith((".nsys-rep", ".sqlite")):
            unaligned = Clocks(())
            data = b"".join(overview.encode([part], unaligned, part.label))
            members.append(archive.ArchiveMember(f"{stem}.pftrace", part.label, shift, data))
        else:
            members.append(
                archive.ArchiveMember(f"{stem}.json", part.label, archive.base_ns(path) + shift, path)
            )
    return members


def _write_pieces(path: Path, pieces: list[bytes]) -> None:
    with open(path, "wb") as file:
        file.writelines(pieces)


def _replace(path: Path, write: Callable[[Path], object]) -> Path:
    """Writes under a temporary name first, so that nobody opens half a file."""
    own_files.check_ours(path)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        write(temporary)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
    return path
