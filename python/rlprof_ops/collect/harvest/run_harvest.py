"""After the job (or while it runs): recover, find, check, name and list everything into the manifest."""

from __future__ import annotations

import contextlib
import os
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable
from dataclasses import replace
from typing import Any

from rlprof_ops import backends
from rlprof_ops.backends import report_names
from rlprof_ops.collect import event_logs
from rlprof_ops.collect.harvest.capture_state import result_of
from rlprof_ops.collect.harvest.expected import planned
from rlprof_ops.collect.harvest.heard import heard
from rlprof_ops.collect.harvest.inventory import FoundReport, find_reports, identify, worlds_of
from rlprof_ops.collect.harvest.manifest import CaptureResult, Manifest, Report
from rlprof_ops.collect.harvest.run_state import Observed, observe
from rlprof_ops.collect.harvest.verify import Checker, ReportCheck
from rlprof_ops.collect.sync.routes import SESSION
from rlprof_ops.errors import RlprofError
from rlprof_ops.host import foreign
from rlprof_ops.host.contained_dir import ContainedDir
from rlprof_ops.recorder.head_recorder import FINDINGS
from rlprof_ops.recorder.head_recorder import FOLDER as RECORDER

Progress = Callable[[int, int, str], None]
_MOST_FINDINGS_BYTES = 4 << 20
_RECOVER_BUDGET_S = 600.0


def harvest(
    run_dir: str | os.PathLike[str],
    *,
    recover: bool = True,
    progress: Progress | None = None,
    content_budget_s: float = 120.0,
) -> Manifest:
    """List every planned capture and every report of a run folder in `manifest.json`, and return it.

    Idempotent; a second run reuses what the first one checked. `progress(done, total, what)` is called per
    report. `content_budget_s` bounds the time spent on looking inside reports with nsys; 0 checks only their
    frames.

    Raises:
        RlprofError: the folder is not a run folder, or the manifest cannot be written.
    """
    say = progress or (lambda done, total, what: None)
    try:
        with ContainedDir(run_dir) as run:
            observed = observe(run)
            notes = list(observed.notes)
            if recover and not observed.running:
                notes += _recover(run, observed)
            found = find_reports(run, observed)
            observed = _whole_world(observed, found, notes)
            found = identify(found, lambda: planned(observed), observed)
            reports = _check_all(run, found, content_budget_s, say)
            manifest = _join(reports, observed, notes, os.fspath(run_dir), _findings(run))
            manifest.write(run)
            link_reports(run, manifest.reports)
    except OSError as error:
        raise RlprofError(f"{os.fspath(run_dir)}: {error.strerror or error}") from error
    return manifest


def _whole_world(observed: Observed, found: list[FoundReport], notes: list[str]) -> Observed:
    """With the workers that only their reports name (other trainers), over which the plan is expanded too."""
    shown = {
        worker: count
        for worker, count in worlds_of(found).items()
        if observed.request.for_worker(worker, None)
    }
    extra = {worker: count for worker, count in shown.items() if worker not in observed.world}
    if extra:
        told = ", ".join(f"{worker} ({count})" for worker, count in sorted(extra.items()))
        notes.append(
            "the number of ranks is taken from the reports themselves, so a missing rank would not be"
            f" noticed: {told}"
        )
        return replace(observed, world=dict(sorted({**observed.world, **extra}.items())))
    return observed


def _recover(run: ContainedDir, observed: Observed) -> list[str]:
    """Import the raw captures that the nodes could not; returns notes."""
    from pathlib import Path

    from rlprof_ops.collect.drain.import_raw import recover_tree

    notes: list[str] = []
    failures: list[tuple[str, str]] = []
    until = time.monotonic() + _RECOVER_BUDGET_S
    # Without a supervisor nsys writes where reports are kept.
    found = [recover_tree(Path(run.root), "", in_place="profiles", until=until, unclosed=[])]
    for node in sorted({log.node for log in observed.logs} | set(observed.records) | set(observed.nodes)):
        if "/" in node or node in ("", ".", "..") or run.stat(f"nodes/{node}/tmp") is None:
            continue
        unclosed = event_logs.unclosed([log for log in observed.logs if log.node == node])
        found.append(recover_tree(Path(run.root), f"nodes/{node}/tmp", until=until, unclosed=unclosed))
    for done, failed in found:
        for path in done:
            run.write_atomic(
                f".harvest/recovered/{path.rsplit('/', 1)[-1]}", path.encode("utf-8", "surrogateescape")
            )
        failures += failed
    by_reason: dict[str, list[str]] = defaultdict(list)
    for path, reason in sorted(failures):
        by_reason[reason].append(path)
    for reason, paths in by_reason.items():
        which = f"raw capture {paths[0]!r}" + (f" and {len(paths) - 1} more" if len(paths) > 1 else "")
        notes.append(f"{which} could not be recovered: {reason}")
    return notes


def _findings(run: ContainedDir) -> tuple[dict[str, Any], ...]:
    """What the job's recorder has found; lines that make no sense are left out."""
    try:
        raw = run.read(f"{RECORDER}/{FINDINGS}", _MOST_FINDINGS_BYTES)
    except OSError:
        return ()
    return tuple(row for row in foreign.rows(raw) if foreign.text(row.get("text")))


def _check_all(run: ContainedDir, found: list[FoundReport], budget_s: float, say: Progress) -> list[Report]:
    until = time.monotonic() + budget_s
    checker = Checker(run, budget_left=lambda: until - time.monotonic(), inside=budget_s > 0)
    recovered = {
        run.read(path).decode("utf-8", "surrogateescape") for path, _ in list(run.files(".harvest/recovered"))
    }
    reports: list[Report] = []
    total = len(found)
    found.reverse()
    try:
        while found:  # taken away one by one, so that thousands of reports are not in memory twice
            entry = found.pop()
            report = _apply(entry.report, checker.check(entry))
            reports.append(replace(report, recovered=True) if report.path in recovered else report)
            say(len(reports), total, report.path)
    finally:
        checker.close()
    reports.sort(key=lambda report: report.path)
    return reports


def _apply(report: Report, verdict: ReportCheck) -> Report:
    warnings = [text for text in (report.warning, verdict.warning) if text]
    return replace(
        report,
        state=verdict.state,
        reason=verdict.reason,
        warning="; ".join(warnings),
        sha256=verdict.sha256 or report.sha256,
        opened_ns=report.opened_ns or verdict.started_ns,
    )


def _join(
    reports: list[Report],
    observed: Observed,
    notes: list[str],
    run_dir: str,
    findings: tuple[dict[str, Any], ...],
) -> Manifest:
    """Each planned capture with its reports, which are marked with it in their list."""
    by_key: dict[object, list[int]] = defaultdict(list)
    for index, report in enumerate(reports):
        for start, phase in _windows_in(report, observed):
            key = report_names.window_key(report.backend, report.worker, report.rank, start, phase)
            by_key[key].append(index)
    results: list[CaptureResult] = []
    for item in planned(observed):
        capture = item.capture
        key = report_names.window_key(
            capture.backend, capture.worker, capture.rank, capture.window.start, capture.phase
        )
        indices = by_key.get(key, [])
        result = result_of(item, [reports[index] for index in indices], observed)
        for index in indices:
            reports[index] = replace(reports[index], capture=result.id)
        results.append(result)
    return Manifest(
        *(observed.job, tuple(results), tuple(reports), observed.world, tuple(notes), run_dir, findings),
        heard(observed),
    )


def _windows_in(report: Report, observed: Observed) -> Collection[tuple[int, str | None]]:
    """What a report holds, by first step and phase: its window, or all of its process's where the tool writes
    one report when that ends.
    """
    if report.worker is None:
        return ()
    if backends.of_one_report(report.backend):
        logs = observed.logs_of(report.worker, report.rank or 0)
        events = (event for log in logs if log.pid == report.pid for event in log.windows)
        opened = {event.key for event in events if event.event == "opened"}
        if held := [(start, phase) for backend, start, phase in opened if backend == report.backend]:
            return held
    return () if report.start is None else ((report.start, report.phase),)


def link_reports(run: ContainedDir, reports: Iterable[Report]) -> None:
    """Give each nsight report of whole steps a link in the newest `ray/<node>/session_*/logs/nsight/`.

    The name is NeMo RL's, `<worker>_<start>:<stop>_<pid>.nsys-rep`. What stands there already stays, and
    storage that takes no links has none: the reports themselves are in `profiles/` and in the manifest.
    """
    sessions: dict[str, str | None] = {}
    for report in reports:
        if report.backend != "nsight" or not report.path.startswith("profiles/") or report.phase:
            continue
        if not (report.node and report.worker and report.pid and report.start and report.stop):
            continue
        if report.node not in sessions:
            sessions[report.node] = _newest_session(run, report.node)
        if session := sessions[report.node]:
            folder = ("ray", report.node, session, "logs", "nsight")
            steps = f"{report.start}:{report.stop}"
            name = f"{report_names.safe_worker(report.worker)}_{steps}_{report.pid}.nsys-rep"
            with contextlib.suppress(OSError), run.folder(folder, create=True) as fd:
                os.symlink("../" * len(folder) + report.path, name, dir_fd=fd)


def _newest_session(run: ContainedDir, node: str) -> str | None:
    try:
        with run.folder(("ray", node)) as fd:
            return max(filter(SESSION.match, os.listdir(fd)), default=None)
    except OSError:
        return None
