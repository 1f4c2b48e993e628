"""Reads many reports at once: one process a file on this machine, or one task a file on a Ray cluster."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from types import ModuleType

from rlprof_ops import backends
from rlprof_ops.analyze import phase_names
from rlprof_ops.analyze.run.identity import ReportFile
from rlprof_ops.analyze.run.process_summary import Result, Unread
from rlprof_ops.analyze.run.summary import summarise_file
from rlprof_ops.backends.contract import load
from rlprof_ops.errors import RlprofError

Results = tuple[Result, ...]  # of one report: one a process in it
Read = tuple[ReportFile, Results]
Progress = Callable[[int, int, Results], None]


def default_workers() -> int:
    return max(1, min(len(os.sched_getaffinity(0)), 16))


def summarise_all(
    root: Path,
    reports: Sequence[ReportFile],
    engine: str = "local",
    workers: int | None = None,
    cache: bool = True,
    progress: Progress | None = None,
) -> list[Result]:
    """Summaries of all processes in all readable reports, in the order of `reports` whatever finished first.

    Parameters
    ----------
    engine: "local" (processes of this machine) or "ray" (tasks of the cluster that is running, which must see
    `root`) workers: how many at once; default: the CPUs of this machine, or all of the cluster's
    """
    readable = [report for report in reports if report.readable]
    run = {"local": _local, "ray": _ray}[engine]
    results: dict[ReportFile, Results] = {}  # a path is not enough: the driver's log holds several windows
    for done, (report, result) in enumerate(run(root, readable, workers, cache), 1):
        results[report] = result
        if progress is not None:
            progress(done, len(readable), result)
    return [result for report in readable for result in results[report]]


def _local(root: Path, reports: list[ReportFile], workers: int | None, cache: bool) -> Iterator[Read]:
    count = min(workers or default_workers(), len(reports))
    if count <= 1:
        yield from (_summarise(summarise_file, root, cache, report) for report in reports)
        return
    from rlprof_ops.analyze.run.worker_pool import each

    _load_readers(reports)
    read = partial(_summarise, summarise_file, root, cache)
    yield from each(read, _largest_first(reports), count, _killed)


def _load_readers(reports: Sequence[ReportFile]) -> None:
    """Imports what the reports will be read with, which a worker that starts as a copy has then already."""
    for name in {report.backend for report in reports if backends.is_known(report.backend)}:
        backend = backends.get(name)
        if backend.reader:
            load(backend.reader)
    phase_names.known("")


def _summarise(read: Callable[..., Results], root: Path, cache: bool, report: ReportFile) -> Read:
    return report, read(root, report, cache)


def _killed(report: ReportFile) -> Read:
    return report, (Unread(report, "the process that read it was killed, for its memory as a rule", 0.0),)


def _ray(root: Path, reports: list[ReportFile], workers: int | None, cache: bool) -> Iterator[Read]:
    import logging

    try:
        import ray
    except ImportError as error:
        raise RlprofError(
            "--engine ray: no ray in this Python. Install it, or leave --engine at local."
        ) from error
    if not ray.is_initialized():
        try:
            ray.init(address="auto", logging_level=logging.WARNING)
        except ConnectionError as error:
            raise RlprofError(
                '--engine ray: no Ray cluster to connect to. Run it inside a job, e.g. COMMAND="rlprof report'
                ' <run folder> --engine ray" sbatch ray.sub, or leave --engine at local.'
            ) from error
    cluster: ModuleType = ray  # its own annotations do not cover what follows
    absolute = root.resolve()
    task = cluster.remote(num_cpus=1, max_retries=2)(summarise_file)
    limit = workers or max(1, int(cluster.cluster_resources().get("CPU", 1)) * 2)
    waiting: dict[object, ReportFile] = {}
    todo = list(_largest_first(reports))
    while todo or waiting:
        while todo and len(waiting) < limit:
            report = todo.pop(0)
            waiting[task.remote(absolute, report, cache)] = report
        ready, _ = ray.wait(list(waiting), num_returns=1)
        for reference in ready:
            report = waiting.pop(reference)
            try:
                yield report, ray.get(reference)
            except ray.exceptions.RayError as error:
                why = f"its Ray task failed: {str(error).strip().splitlines()[-1][:200]}"
                yield report, (Unread(report, why, 0.0),)


def _largest_first(reports: Sequence[ReportFile]) -> list[ReportFile]:
    return sorted(reports, key=lambda report: -report.size_bytes)
