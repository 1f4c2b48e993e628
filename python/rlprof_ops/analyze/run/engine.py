"""Reads many reports at once: one process a file on this machine, or one task a file on a Ray cluster."""

from __future__ import annotations

import contextlib
import ctypes
import logging
import multiprocessing
import os
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any

from rlprof_ops.analyze.run.identity import Report
from rlprof_ops.analyze.run.summary import Summary, Unread, summarise_file
from rlprof_ops.errors import RlprofError

Result = Summary | Unread
_PR_SET_PDEATHSIG = 1
Progress = Callable[[int, int, Result], None]


def default_workers() -> int:
    return max(1, min(len(os.sched_getaffinity(0)), 16))


def summarise_all(
    root: Path,
    reports: Sequence[Report],
    engine: str = "local",
    workers: int | None = None,
    cache: bool = True,
    progress: Progress | None = None,
) -> list[Result]:
    """Summaries of all readable reports, in the order of `reports` whatever finished first.

    Parameters
    ----------
    engine: "local" (processes of this machine) or "ray" (tasks of the cluster that is running, which must see
    `root`) workers: how many at once; default: the CPUs of this machine, or all of the cluster's
    """
    readable = [report for report in reports if report.readable]
    run = {"local": _local, "ray": _ray}[engine]
    results: dict[str, Result] = {}
    for done, result in enumerate(run(root, readable, workers, cache), 1):
        results[result.report.path] = result
        if progress is not None:
            progress(done, len(readable), result)
    return [results[report.path] for report in readable]


def _local(root: Path, reports: list[Report], workers: int | None, cache: bool) -> Iterator[Result]:
    count = min(workers or default_workers(), len(reports))
    if count <= 1:
        yield from (summarise_file(root, report, cache) for report in reports)
        return
    # spawn, not fork: the parent may hold threads (Ray, pyarrow); a worker is renewed so that its memory
    # cannot add up
    context = multiprocessing.get_context("spawn")
    left = {report.path: report for report in reports}
    try:
        renewed: dict[str, Any] = {"max_tasks_per_child": 64} if sys.version_info >= (3, 11) else {}
        with ProcessPoolExecutor(count, mp_context=context, initializer=_end_with_parent, **renewed) as pool:
            jobs = [pool.submit(summarise_file, root, report, cache) for report in _largest_first(reports)]
            for job in as_completed(jobs):
                result = job.result()
                left.pop(result.report.path)
                yield result
    except (
        BrokenProcessPool
    ):  # a worker was killed, for its memory as a rule: go on one by one and name the culprit
        for report in left.values():
            yield _alone(root, report, cache, context)


def _end_with_parent() -> None:
    """Has the kernel end this worker when the report is killed, as a job's end does at
    `RLPROF_REPORT_SECONDS`: one that reads a large file would otherwise go on for nobody.
    """
    with contextlib.suppress(OSError, AttributeError):  # not Linux: it ends with the file it is reading
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _alone(root: Path, report: Report, cache: bool, context: Any) -> Result:
    try:
        with ProcessPoolExecutor(1, mp_context=context, initializer=_end_with_parent) as pool:
            return pool.submit(summarise_file, root, report, cache).result()
    except BrokenProcessPool:
        return Unread(report, "the process that read it was killed, for its memory as a rule", 0.0)


def _ray(root: Path, reports: list[Report], workers: int | None, cache: bool) -> Iterator[Result]:
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
    cluster: Any = ray  # its own annotations do not cover what follows
    absolute = root.resolve()
    task = cluster.remote(num_cpus=1, max_retries=2)(summarise_file)
    limit = workers or max(1, int(cluster.cluster_resources().get("CPU", 1)) * 2)
    waiting: dict[Any, Report] = {}
    todo = list(_largest_first(reports))
    while todo or waiting:
        while todo and len(waiting) < limit:
            report = todo.pop(0)
            waiting[task.remote(absolute, report, cache)] = report
        ready, _ = ray.wait(list(waiting), num_returns=1)
        for reference in ready:
            report = waiting.pop(reference)
            try:
                yield ray.get(reference)
            except ray.exceptions.RayError as error:
                yield Unread(report, f"its Ray task failed: {str(error).strip().splitlines()[-1][:200]}", 0.0)


def _largest_first(reports: Sequence[Report]) -> list[Report]:
    return sorted(reports, key=lambda report: -report.size_bytes)
