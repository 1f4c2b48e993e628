"""Turns raw captures (`.qdstrm`) into reports, and gives stray reports the name of the window they hold."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path

from rlprof_ops.backends import names, nsight
from rlprof_ops.collect.drain.nsys_contents import Contents, ExportFailed, look, run_bounded
from rlprof_ops.collect.event_logs import ProcessLog, WindowEvent
from rlprof_ops.collect.sync.send_file import reason_of
from rlprof_ops.host import processes
from rlprof_ops.host.contained_dir import ContainedDir

_IMPORTED = ".imported"
_Unclosed = list[tuple[ProcessLog, WindowEvent]]


def recover_tree(
    root: Path, folder: str, *, until: float, unclosed: _Unclosed
) -> tuple[list[str], list[tuple[str, str]]]:
    """Bring what nsys left in `root/folder` to `root/profiles`. Returns (recovered paths, failures), relative
    to `root`.

    A raw capture that was imported gets the suffix `.imported`, so that a second run does nothing. `until` is
    in monotonic seconds.
    """
    done: list[str] = []
    failed: list[tuple[str, str]] = []
    try:
        with ContainedDir(root) as tree:
            left = list(unclosed)
            paths = sorted(
                path
                for path, found in tree.files(folder)
                if found.st_size and path.endswith((nsight.RAW_SUFFIX, nsight.SUFFIX))
            )
            real = os.path.realpath(root)
            busy = processes.writers(frozenset(f"{real}/{path}" for path in paths))
            for path in paths:
                if f"{real}/{path}" in busy:  # under its final name it would count as finished
                    failed.append((path, "it is still being written"))
                    continue
                budget = until - time.monotonic()
                if budget <= 0:
                    failed.append((path, "the deadline came before its turn"))
                    continue
                try:
                    done.append(_recover(tree, root, path, budget, left))
                except ExportFailed as error:
                    failed.append((path, str(error)))
                except OSError as error:
                    failed.append((path, reason_of(error)))
    except OSError as error:
        failed.append((folder, reason_of(error)))
    return done, failed


def _recover(tree: ContainedDir, root: Path, path: str, budget_s: float, unclosed: _Unclosed) -> str:
    """One file; returns where the report went."""
    report = path
    if path.endswith(nsight.RAW_SUFFIX):
        report = _import(tree, root, path, budget_s)
    target = _named_place(path) or _place(path, _window_of(root / report, budget_s, unclosed))
    number = 0
    while True:
        free = target if number == 0 else target.replace(nsight.SUFFIX, f".{number}{nsight.SUFFIX}")
        try:
            tree.rename(report, free, replace=False)
            break
        except FileExistsError:
            number += 1
    if report != path:
        tree.rename(path, path + _IMPORTED)
    return free


def _window_of(report: Path, budget_s: float, unclosed: _Unclosed) -> tuple[ProcessLog, WindowEvent] | None:
    try:
        contents = look(report, timeout_s=max(5.0, budget_s))
    except ExportFailed:
        return None  # kept under its own name: the harvest says what is wrong with it
    window = choose(contents, unclosed)
    if window is not None:
        unclosed.remove(window)
    return window


def _named_place(path: str) -> str | None:
    """Where a report goes that has its true name already: its window was closed by us, not by its step
    gate.
    """
    name = path.rsplit("/", 1)[-1]
    parsed = names.parse(name)
    if parsed is None or parsed.kind != "rlprof" or parsed.worker is None:
        return None
    report = name.removesuffix(nsight.RAW_SUFFIX).removesuffix(nsight.SUFFIX) + nsight.SUFFIX
    return str(names.report_folder("nsight", parsed.worker, parsed.rank) / report)


def choose(contents: Contents | None, unclosed: _Unclosed) -> tuple[ProcessLog, WindowEvent] | None:
    """The one open window that the contents belong to, by process and step; None when none or several fit."""
    if contents is None or not contents.pids:
        return None
    fits = [(log, event) for log, event in unclosed if log.pid in contents.pids and event.backend == "nsight"]
    if contents.steps:
        fits = [
            (log, event)
            for log, event in fits
            if any(
                event.start <= step and (event.stop is None or step < event.stop) for step in contents.steps
            )
        ]
    return fits[0] if len(fits) == 1 else None


@dataclass(frozen=True)
class _Range:
    start: int
    stop: int | None


def _place(path: str, window: tuple[ProcessLog, WindowEvent] | None) -> str:
    if window is None:
        stem = path.rsplit("/", 1)[-1].removesuffix(nsight.RAW_SUFFIX).removesuffix(nsight.SUFFIX)
        return f"profiles/nsight/unknown/{names.safe_worker(stem)}{nsight.SUFFIX}"
    log, event = window
    name = names.report_name(
        log.worker,
        log.rank,
        _Range(event.start, event.stop),
        event.phase,
        log.host or log.node,
        log.pid,
        nsight.SUFFIX,
    )
    return str(names.report_folder("nsight", log.worker, log.rank) / name)


def _import(tree: ContainedDir, root: Path, path: str, budget_s: float) -> str:
    importer = nsight.find_importer()
    if importer is None:
        raise ExportFailed(
            "QdstrmImporter is not installed here; run `rlprof harvest` where Nsight Systems is"
        )
    folder = f".recover/{time.time_ns()}"
    tree.write_atomic(f"{folder}/import.log", b"")
    work = root / folder
    link = work / "raw.qdstrm"  # a name of ours: a hostile one could be read as an option
    link.symlink_to((root / path).resolve())
    try:
        output = run_bounded(
            nsight.import_argv(importer, link, work / "report.nsys-rep"), budget_s, str(work)
        )
        if tree.stat(f"{folder}/report.nsys-rep") is None:
            raise ExportFailed(f"QdstrmImporter wrote nothing: {output.strip()[-200:]}")
        moved = f".recover/{work.name}.nsys-rep"
        tree.rename(f"{folder}/report.nsys-rep", moved)
        return moved
    finally:
        for name in ("raw.qdstrm", "import.log", "report.nsys-rep"):
            tree.unlink(f"{folder}/{name}")
        for left, _ in list(tree.files(folder)):
            tree.unlink(left)
        try:
            work.rmdir()
        except OSError:
            pass
