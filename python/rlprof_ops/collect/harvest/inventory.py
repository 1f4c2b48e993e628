"""Finds the report files of a run folder and says, file by file, what each one is of."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, replace

from rlprof_ops import backends
from rlprof_ops.backends import report_names
from rlprof_ops.collect.event_logs import ProcessLog, WindowEvent
from rlprof_ops.collect.harvest.expected import Planned
from rlprof_ops.collect.harvest.manifest import Report
from rlprof_ops.collect.harvest.run_state import Observed
from rlprof_ops.host.contained_dir import ContainedDir

_STEP_FOLDER = re.compile(r"(?:^|/)(?:rollout_)?step[_-]?(\d{1,12})(?:/|$)")


@dataclass(frozen=True, slots=True)
class FoundReport:
    """A report file before anybody looked inside."""

    report: Report
    expected_bytes: int | None = None  # as its node sent it


def find_reports(run: ContainedDir, observed: Observed) -> list[FoundReport]:
    """Every report below `profiles/` and in Ray's own folders, with what name, events and node records
    tell.
    """
    by_path = {
        event.path: (log, event)
        for log in observed.logs
        for event in log.windows
        if event.event == "closed" and event.path
    }
    sent = {
        file.place: (record, path)
        for record in observed.records.values()
        for path, file in record.files.items()
    }
    recovered = {path for record in observed.records.values() for path in record.recovered}
    workers = {report_names.safe_worker(worker): worker for worker in observed.world if worker}
    told = {event.backend for log in observed.logs for event in log.windows}
    found: list[FoundReport] = []
    for path, size, mtime, backend, node in _files(run, told):
        path = by_path[path][1].path if path in by_path else path  # the same text, once in memory
        name = report_names.parse(_own_name(path))
        report = Report(
            path=path,
            state="ok",
            size_bytes=size,
            mtime_ns=mtime,
            backend=backend or _backend_of(path),
            node=node,
            recovered=path in recovered,
        )
        expected = None
        if path in sent:
            record, source = sent[path]
            report = replace(
                report,
                node=record.node,
                sha256=record.files[source].sha256,
                recovered=report.recovered or source in record.recovered,
            )
            expected = record.files[source].size_bytes
            event = by_path.get(source)
        else:
            event = by_path.get(path)
        if name is not None:
            worker = workers.get(name.worker or "", name.worker)
            report = replace(
                report,
                kind=name.kind,
                worker=worker,
                rank=name.rank,
                start=name.start,
                stop=name.stop,
                phase=name.phase,
                host=name.host,
                pid=name.pid,
            )
        if event is not None:
            report = _told(report, *event)
        elif report.start is None and (folder := _STEP_FOLDER.search(path)):
            report = replace(report, start=int(folder[1]), stop=int(folder[1]) + 1)
        found.append(FoundReport(report, expected))
    return found


def _told(report: Report, log: ProcessLog, event: WindowEvent) -> Report:
    opened = [
        other.t_ns
        for other in log.windows
        if other.event == "opened" and other.key == event.key and other.t_ns <= event.t_ns
    ]
    return replace(
        report,
        mapped_by="event",
        worker=log.worker,
        rank=log.rank,
        pid=log.pid,
        host=report.host or log.host,
        node=log.node or report.node,
        backend=event.backend,
        start=event.start,
        stop=event.stop,
        phase=event.phase,
        partial=event.partial,
        warning=report.warning or event.reason,
        opened_ns=max(opened) if opened else None,
        closed_ns=event.t_ns,
        taken_s=event.taken_s,
    )


def _files(
    run: ContainedDir, told: Collection[str]
) -> Iterator[tuple[str, int, int, str | None, str | None]]:
    """(path, bytes, mtime, backend, node) of everything that may be a report. `told`: backends of events,
    which this machine may not have.
    """
    for path, stat in run.files("profiles"):
        parts = path.split("/")
        backend = parts[1] if len(parts) > 2 and (parts[1] in told or backends.is_known(parts[1])) else None
        if parts[-1].startswith(".") or (
            backend is None and report_names.parse(_own_name(parts[-1])) is None
        ):
            continue
        yield path, stat.st_size, stat.st_mtime_ns, backend, None
    for path, stat in run.files("ray"):
        parts = path.split("/")  # ray/<node>/<session>/logs/<backend>/…
        if (
            len(parts) > 5
            and parts[3] == "logs"
            and parts[4] in backends.builtin()
            and report_names.parse(parts[-1]) is not None
        ):
            if parts[-1].startswith("empty."):
                continue  # what Ray's plugin leaves when it tries its options
            yield path, stat.st_size, stat.st_mtime_ns, parts[4], parts[1]


def _backend_of(path: str) -> str | None:
    found = backends.of_report(path)
    return found.name if found else None


def identify(
    found: list[FoundReport], plan: Callable[[], Iterable[Planned]], observed: Observed
) -> list[FoundReport]:
    """Give reports of other trainers the worker, rank and steps that the plan and the records allow.

    What cannot be told for certain is marked `mapped_by="guess"` with a warning that says on what it rests.
    `plan` is asked only where something is left to guess.
    """
    by_pid: dict[tuple[str, int], ProcessLog] = {(log.node, log.pid): log for log in observed.logs}
    result: list[FoundReport] = []
    for entry in found:
        report = entry.report
        log = by_pid.get((report.node or report.host or "", report.pid or -1))
        if (
            report.mapped_by == "name"
            and report.rank is None
            and log is not None
            and report.worker in (None, log.worker)
        ):
            report = replace(
                report, worker=log.worker, rank=log.rank, host=report.host or log.host, mapped_by="record"
            )
        if report.start is None and log is not None:
            report = _by_opening(report, log)
        result.append(entry if report is entry.report else replace(entry, report=report))
    return _guess_ranks(_count_windows(result, plan), plan)


def _by_opening(report: Report, log: ProcessLog) -> Report:
    """A tool that numbers the ranges of a process counts what the process opened, in that order."""
    opened = [event for event in log.windows if event.event == "opened" and event.backend == report.backend]
    name = report_names.parse(report.path.rsplit("/", 1)[-1])
    number = name.ordinal if name and name.ordinal else 1 if len(opened) == 1 else 0
    if not 1 <= number <= len(opened):
        return report
    event = opened[number - 1]
    return replace(
        report,
        worker=log.worker,
        rank=log.rank,
        start=event.start,
        stop=event.stop,
        phase=event.phase,
        mapped_by="event",
    )


def _count_windows(found: list[FoundReport], plan: Callable[[], Iterable[Planned]]) -> list[FoundReport]:
    """Ray and verl number the ranges of a process; the n-th report is the n-th window when there are as
    many.
    """
    windows: dict[tuple[str | None, str | None, int | None], set[tuple[int, int | None]]] = defaultdict(set)
    groups: dict[tuple[str | None, int | None], list[int]] = defaultdict(list)
    for index, entry in enumerate(found):
        report = entry.report
        if backends.of_one_report(report.backend):
            continue
        if report.start is None and report.worker is not None and report.pid is not None:
            groups[entry.report.node, entry.report.pid].append(index)
    if not groups:
        return found
    for item in plan():
        capture = item.capture
        windows[capture.backend, capture.worker, capture.rank].add(
            (capture.window.start, capture.window.stop)
        )
    result = list(found)
    for indices in groups.values():
        first = found[indices[0]].report
        known = sorted(
            windows.get((first.backend, first.worker, first.rank), ()), key=lambda window: window[0]
        )
        order = sorted(indices, key=lambda index: _ordinal(found[index].report))
        for index, window in zip(order, known, strict=False):
            warning = (
                f"its steps are a guess: the process wrote {len(order)} reports for {len(known)} windows,"
                " counted in order"
            )
            report = replace(
                found[index].report, start=window[0], stop=window[1], mapped_by="guess", warning=warning
            )
            result[index] = replace(found[index], report=report)
    return result


def _ordinal(report: Report) -> tuple[int, str]:
    name = report_names.parse(report.path.rsplit("/", 1)[-1])
    return (name.ordinal or 0 if name else 0), report.path


def _guess_ranks(found: list[FoundReport], plan: Callable[[], Iterable[Planned]]) -> list[FoundReport]:
    """NeMo RL's names have no rank: reports of one worker and window are dealt to its ranks by node and
    pid.
    """
    ranks: dict[tuple[str, str, int], list[int]] = defaultdict(list)
    taken: dict[tuple[str, str, int], set[int]] = defaultdict(set)
    open_: dict[tuple[str, str, int], list[int]] = defaultdict(list)
    for index, entry in enumerate(found):
        report = entry.report
        if report.backend is None or report.worker is None or report.start is None:
            continue
        key = (report.backend, report.worker, report.start)
        if report.rank is not None:
            taken[key].add(report.rank)
        elif report.kind in ("nemo_rl", "vllm", "ray"):
            open_[key].append(index)
    if not open_:
        return found
    for item in plan():
        if item.capture.rank is not None:
            ranks[item.capture.backend, item.capture.worker, item.capture.window.start].append(
                item.capture.rank
            )
    result = list(found)
    for key, indices in open_.items():
        free = sorted(set(ranks.get(key, ())) - taken[key])
        order = sorted(
            indices,
            key=lambda index: (
                found[index].report.node or "",
                found[index].report.pid or 0,
                found[index].report.path,
            ),
        )
        certain = len(free) == len(order) == 1
        for index, rank in zip(order, free, strict=False):
            warning = (
                ""
                if certain
                else "its rank is a guess: the name has none, so ranks were dealt by node and pid"
            )
            report = replace(
                found[index].report,
                rank=rank,
                mapped_by="record" if certain else "guess",
                warning=warning or found[index].report.warning,
            )
            result[index] = replace(found[index], report=report)
    return result


def worlds_of(found: Iterable[FoundReport]) -> dict[str, int]:
    """Number of ranks by worker that the reports themselves show: distinct processes, or the highest rank."""
    processes: dict[str, set[tuple[str | None, int | None]]] = defaultdict(set)
    highest: dict[str, int] = defaultdict(int)
    for entry in found:
        report = entry.report
        if report.worker:
            processes[report.worker].add((report.node, report.pid))
            highest[report.worker] = max(highest[report.worker], (report.rank or 0) + 1)
    return {
        worker: max(highest[worker], len(seen) if highest[worker] <= 1 else 0)
        for worker, seen in processes.items()
    }


def _own_name(path: str) -> str:
    """The file's own name: a sync that found another report under it has put `<node>~` or `<node>~2~` before
    it.
    """
    return re.sub(r"^[^~]*~(?:\d+~)?", "", path.rsplit("/", 1)[-1])
