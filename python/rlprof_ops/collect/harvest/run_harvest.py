"""After the job (or while it runs): recover, find, check, name and list everything into the manifest."""

from __future__ import annotations

import contextlib
import math
import os
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable
from dataclasses import replace
from typing import Any

from rlprof_ops import backends
from rlprof_ops.backends import report_names
from rlprof_ops.collect import event_logs
from rlprof_ops.collect.harvest.capture_state import result_of
from rlprof_ops.collect.harvest.expected import asked_meanwhile, planned
from rlprof_ops.collect.harvest.heard import heard
from rlprof_ops.collect.harvest.inventory import FoundReport, find_reports, identify, worlds_of
from rlprof_ops.collect.harvest.manifest import WHOLE, CaptureResult, Manifest, Report
from rlprof_ops.collect.harvest.run_state import Observed, observe
from rlprof_ops.collect.harvest.verify import Checker, ReportCheck
from rlprof_ops.collect.sync.routes import SESSION
from rlprof_ops.errors import RlprofError
from rlprof_ops.host import foreign
from rlprof_ops.host.contained_dir import ContainedDir
from rlprof_ops.recorder.head_recorder import CAPTURES, FINDINGS
from rlprof_ops.recorder.head_recorder import FOLDER as RECORDER
from rlprof_ops.words import counted

Progress = Callable[[int, int, str], None]
_MOST_RECORDER_BYTES = 4 << 20  # of one of its files
_RECOVER_S = 600.0  # at most, for raw captures
_RECOVER_SHARE = 0.5  # of the time there is; looks inside get the rest
_LEAST_LOOK_S = 10.0
_MARGIN_S, _MARGIN_SHARE = 20.0, 0.25  # of that time, for the manifest itself


def harvest(
    run_dir: str | os.PathLike[str],
    *,
    recover: bool = True,
    progress: Progress | None = None,
    content_budget_s: float = 120.0,
    within_s: float = math.inf,
) -> Manifest:
    """List every planned capture and every report of a run folder in `manifest.json`, and return it.

    Idempotent; a second run reuses what the first one checked. `progress(done, total, what)` is called per
    report. `content_budget_s` bounds the time spent on looking inside reports with nsys; 0 checks only their
    frames. The manifest is there after `within_s`, and its notes say what there was no time for.

    Raises:
        RlprofError: the folder is not a run folder, or the manifest cannot be written.
    """
    say = progress or (lambda done, total, what: None)
    deadline = time.monotonic() + within_s - min(_MARGIN_S, within_s * _MARGIN_SHARE)
    try:
        with ContainedDir(run_dir) as run:
            observed = observe(run)
            notes = list(observed.notes)
            if recover and not observed.running:
                notes += _recover(run, observed, deadline)
            found = find_reports(run, observed)
            observed = _whole_world(observed, found, notes)
            found = identify(found, lambda: planned(observed), observed)
            reports = _check_all(run, found, content_budget_s, deadline, notes, say)
            manifest = _join(reports, observed, notes, os.fspath(run_dir), run)
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


def _recover(run: ContainedDir, observed: Observed, deadline: float) -> list[str]:
    """Import the raw captures that the nodes could not; returns notes."""
    from pathlib import Path

    from rlprof_ops.collect.drain.import_raw import recover_tree

    notes: list[str] = []
    failures: list[tuple[str, str]] = []
    now = time.monotonic()
    until = now + min(_RECOVER_S, (deadline - now) * _RECOVER_SHARE)
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


def _recorded(run: ContainedDir, name: str, key: str) -> tuple[dict[str, Any], ...]:
    """The rows of a file of the job's recorder that have a text under `key`."""
    try:
        raw = run.read(f"{RECORDER}/{name}", _MOST_RECORDER_BYTES)
    except OSError:
        return ()
    return tuple(row for row in foreign.rows(raw) if foreign.text(row.get(key)))


def _check_all(
    run: ContainedDir,
    found: list[FoundReport],
    budget_s: float,
    deadline: float,
    notes: list[str],
    say: Progress,
) -> list[Report]:
    """Each report with its verdict: first by the frames of all, then by what is inside, the small ones first.
    What could not be looked into becomes a note.
    """
    checker = Checker(run, hash_until=deadline)
    recovered = {
        run.read(path).decode("utf-8", "surrogateescape") for path, _ in list(run.files(".harvest/recovered"))
    }
    reports: list[Report] = []
    to_look_into: list[tuple[Report, ReportCheck]] = []
    not_seen: Counter[str] = Counter()
    total = len(found)

    def add(report: Report, verdict: ReportCheck) -> None:
        report = _apply(report, verdict)
        reports.append(replace(report, recovered=True) if report.path in recovered else report)
        say(len(reports), total, report.path)

    found.reverse()
    try:
        while found:  # taken away one by one, so that thousands of reports are not in memory twice
            verdict = checker.check(entry := found.pop())
            if budget_s > 0 and checker.can_look(entry.report, verdict):
                to_look_into.append((entry.report, verdict))
            else:
                add(entry.report, verdict)
        until = min(time.monotonic() + budget_s, deadline)
        for report, verdict in sorted(to_look_into, key=lambda each: each[0].size_bytes):
            now, why = time.monotonic(), "no time was left"
            if now < until:
                seconds = min(max(_LEAST_LOOK_S, until - now), deadline - now)
                verdict, why = checker.look(report, verdict, seconds)
            not_seen.update([why] if why else [])
            add(report, verdict)
    finally:
        checker.close()
    for why, count in not_seen.most_common(1):
        notes.append(
            f"{not_seen.total()} of {counted(total, 'report')} could not be looked into, only their frames"
            f" are checked ({count}: {why}); `rlprof harvest --inside SECONDS` looks again"
        )
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
    run: ContainedDir,
) -> Manifest:
    """Each planned capture with its reports, which are marked with it in their list; and each that was asked
    while the job ran and is not whole.
    """
    by_key: dict[object, list[int]] = defaultdict(list)
    for index, report in enumerate(reports):
        for start, phase in _windows_in(report, observed):
            key = report_names.window_key(report.backend, report.worker, report.rank, start, phase)
            by_key[key].append(index)
    results: list[CaptureResult] = []
    told = set()
    for item in (*planned(observed), *asked_meanwhile(observed, _recorded(run, CAPTURES, "id"))):
        result = result_of(item, [reports[index] for index in by_key[item.key]], observed)
        if item.asked_by and (item.key in told or result.state in WHOLE):
            continue
        told.add(item.key)
        for index in by_key[item.key]:
            reports[index] = replace(reports[index], capture=result.id)
        results.append(result)
    findings = _recorded(run, FINDINGS, "text")
    return Manifest(
        *(observed.job, tuple(results), tuple(reports), observed.world, tuple(notes), run_dir, findings),
        heard(observed),
        observed.running,
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
