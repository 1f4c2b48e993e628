"""Turns raw captures (`.qdstrm`) into reports, and gives stray reports the name of the window they hold."""

from __future__ import annotations

import itertools
import os
import re
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from rlprof_ops.backends import OK, report_names
from rlprof_ops.backends.nsight import nsys_cli
from rlprof_ops.collect.drain.claims import claimed
from rlprof_ops.collect.drain.nsys_contents import Contents, ExportFailed, look, run_bounded
from rlprof_ops.collect.event_logs import ProcessLog, WindowEvent
from rlprof_ops.collect.sync.copy_bytes import copy_in_kernel
from rlprof_ops.host import processes
from rlprof_ops.host.contained_dir import ContainedDir
from rlprof_ops.host.foreign import reason_of

_IMPORTED = ".imported"
_AT_ONCE = min(4, os.cpu_count() or 1)  # an import takes a core
_FIRST_S = 2.0  # for an importer to show that it makes progress
_LOOK_SHARE = 0.25  # of the time, to look inside reports without a name of ours
_LACKING = re.compile(r"error while loading shared libraries: ([^:\s]+)")
_ELSEWHERE = "`rlprof harvest` on the login node, or wherever nsys can import, makes the report in seconds"
_Unclosed = list[tuple[ProcessLog, WindowEvent]]


def recover_tree(
    root: Path, folder: str, *, until: float, unclosed: _Unclosed, hard: float = 0.0, in_place: str = ""
) -> tuple[list[str], list[tuple[str, str]]]:
    """Bring what nsys left in `root/folder` to `root/profiles`. Returns (recovered paths, failures), relative
    to `root`. In the folder `in_place` reports stay where they are, and those of raw captures come beside
    them. Either may be empty: none.

    Finished reports go first, by a rename, so that no importer that hangs can cost one of them; then raw
    captures are imported, several at once. A raw capture that was imported gets the suffix `.imported`, or is
    removed `in_place`, so that a second run does nothing. `until` is in monotonic seconds, and so is `hard`,
    until which an importer may go on that makes progress.
    """
    try:
        with ContainedDir(root) as tree:
            return _Recovery(tree, root, until, max(until, hard), list(unclosed), in_place).run(folder)
    except OSError as error:
        return [], [(folder, reason_of(error))]


class _Recovery:
    """One run over a folder; its methods may be called by several threads."""

    def __init__(
        self, tree: ContainedDir, root: Path, until: float, hard: float, unclosed: _Unclosed, in_place: str
    ) -> None:
        self._tree, self._root, self._unclosed = tree, root, unclosed
        self._in_place = in_place
        self._until, self._hard = until, hard
        self._lock = threading.Lock()
        self._halves: set[str] = (
            set()
        )  # reports that were not written to their end, beside their raw captures
        self._done: list[str] = []
        self._failed: list[tuple[str, str]] = []

    def run(self, folder: str) -> tuple[list[str], list[tuple[str, str]]]:
        sizes = self._found(folder) if folder else {}
        if self._in_place:
            beside = self._found(self._in_place)
            raws = {path for path in beside if path.endswith(nsys_cli.RAW_SUFFIX)}
            sizes |= {path: size for path, size in beside.items() if path in raws or _raw_of(path) in raws}
        real = os.path.realpath(self._root)
        busy = processes.writers(frozenset(f"{real}/{path}" for path in sizes))
        for path in [path for path in sizes if f"{real}/{path}" in busy]:
            del sizes[path]  # under its final name it would count as finished
            self._failed.append((path, "it is still being written"))
        reports = {path for path in sizes if path.endswith(nsys_cli.SUFFIX)}
        raws = sizes.keys() - reports
        # An importer that failed at its very end leaves both, and one that failed before half of a report.
        for report in {path for path in reports if _raw_of(path) in raws}:
            if nsys_cli.check(self._root / report).state == OK:
                raws.remove(raw := _raw_of(report))
                self._guarded(self._put_aside, raw)
            else:
                reports.remove(report)
                self._halves.add(report)
        reports = {path for path in reports if not self._is_in_place(path)}
        named = sorted(path for path in reports if _named_place(path) is not None)
        for path in named:
            self._guarded(self._bring_home, path)
        # To look inside a report takes nsys, which may hang: it gets a part of the time, and not looked at
        # they come home too.
        looked_until = time.monotonic() + self._left() * _LOOK_SHARE
        self._each(lambda path: self._bring_home(path, looked_until), sorted(reports.difference(named)))
        self._each(self._import_one, sorted(raws, key=lambda path: sizes[path]))
        for path in sorted(self._halves):
            if not self._is_in_place(path):
                self._guarded(self._bring_home, path)
        return sorted(self._done), self._failed

    def _found(self, folder: str) -> dict[str, int]:
        return {
            path: found.st_size
            for path, found in self._tree.files(folder)
            if found.st_size and path.endswith((nsys_cli.RAW_SUFFIX, nsys_cli.SUFFIX))
        }

    def _is_in_place(self, path: str) -> bool:
        return bool(self._in_place) and path.startswith(f"{self._in_place}/")

    def _left(self) -> float:
        return max(0.0, self._until - time.monotonic())

    def _each(self, work: Callable[[str], None], paths: list[str]) -> None:
        if not paths:
            return
        with ThreadPoolExecutor(min(_AT_ONCE, len(paths)), thread_name_prefix="recover") as pool:
            for _ in pool.map(lambda path: self._guarded(work, path), paths):
                pass

    def _guarded(self, work: Callable[[str], None], path: str) -> None:
        try:
            work(path)
        except ExportFailed as error:
            self._failed.append((path, str(error)))
        except OSError as error:
            if not isinstance(error, FileNotFoundError) or self._tree.stat(path) is not None:
                self._failed.append((path, reason_of(error)))  # else another harvest has done it meanwhile

    def _bring_home(self, path: str, looked_until: float = 0.0) -> None:
        self._put(path, _named_place(path) or _place(path, self._window_of(path, looked_until)))

    def _import_one(self, path: str) -> None:
        with claimed(self._tree, path, self._until, self._hard) as is_mine:
            if not is_mine:
                raise ExportFailed("another harvest is importing it")
            if self._tree.stat(path) is not None:
                self._import_alone(path)

    def _import_alone(self, path: str) -> None:
        most_s = self._hard - time.monotonic()
        if most_s <= 0:
            raise ExportFailed("the deadline came before its turn")
        budget_s = max(min(_FIRST_S, most_s), self._left())
        report = _import(self._tree, self._root, path, budget_s, most_s)
        half = path.removesuffix(nsys_cli.RAW_SUFFIX) + nsys_cli.SUFFIX
        if self._is_in_place(path):
            self._write_over(half, report)
            self._done.append(half.replace(self._in_place, "profiles", 1))
        else:
            self._put(report, _named_place(path) or _place(path, self._window_of(report, self._until)))
            if half in self._halves:
                self._tree.unlink(half)
        with self._lock:
            self._halves.discard(half)
        self._put_aside(path)

    def _write_over(self, half: str, report: str) -> None:
        """In the same file: another one of its name would come home beside a half that was sent before."""
        source, out = self._tree.open_read(report), self._tree.open_write(half, os.O_CREAT)
        try:
            os.truncate(out, copy_in_kernel(source, out))
        finally:
            os.close(source)
            os.close(out)
        self._tree.unlink(report)

    def _put_aside(self, raw: str) -> None:
        """So that a second run does not import it. Beside reports it goes, as nsys would have removed it."""
        if self._is_in_place(raw):
            self._tree.unlink(raw)
        else:
            self._tree.rename(raw, raw + _IMPORTED)

    def _put(self, report: str, target: str) -> None:
        """Under its name, or that name with a number when another report has it: none is ever replaced."""
        for number in itertools.count():
            free = target if number == 0 else target.replace(nsys_cli.SUFFIX, f".{number}{nsys_cli.SUFFIX}")
            try:
                self._tree.rename(report, free, replace=False)
            except FileExistsError:
                if not self._half_moved(report, free):
                    continue
                self._tree.unlink(report)
            self._done.append(free)
            return

    def _half_moved(self, report: str, target: str) -> bool:
        """Whether both are one file: its process ended between linking it and taking the old name."""
        here, there = self._tree.stat(report), self._tree.stat(target)
        return here is not None and there is not None and os.path.samestat(here, there)

    def _window_of(self, report: str, until: float) -> tuple[ProcessLog, WindowEvent] | None:
        budget_s = until - time.monotonic()
        if budget_s <= 0:
            return None
        try:
            contents = look(self._root / report, timeout_s=budget_s)
        except ExportFailed:
            return None  # kept under its own name: the harvest says what is wrong with it
        with self._lock:
            window = choose(contents, self._unclosed)
            if window is not None:
                self._unclosed.remove(window)
        return window


def _raw_of(report: str) -> str:
    return report.removesuffix(nsys_cli.SUFFIX) + nsys_cli.RAW_SUFFIX


def _named_place(path: str) -> str | None:
    """Where a report goes that has its true name already: its window was closed by us, not by its step
    gate.
    """
    name = path.rsplit("/", 1)[-1]
    parsed = report_names.parse(name)
    if parsed is None or parsed.kind != "rlprof" or parsed.worker is None:
        return None
    report = name.removesuffix(nsys_cli.RAW_SUFFIX).removesuffix(nsys_cli.SUFFIX) + nsys_cli.SUFFIX
    return str(report_names.report_folder("nsight", parsed.worker, parsed.rank) / report)


def choose(contents: Contents | None, unclosed: _Unclosed) -> tuple[ProcessLog, WindowEvent] | None:
    """The one open window that the contents belong to, by process and step; None when none or several fit."""
    if contents is None or not contents.pids:
        return None
    fits = [(log, event) for log, event in unclosed if log.pid in contents.pids and event.backend == "nsight"]
    if contents.steps:
        fits = [(log, event) for log, event in fits if any(step in event.window for step in contents.steps)]
    return fits[0] if len(fits) == 1 else None


def _place(path: str, window: tuple[ProcessLog, WindowEvent] | None) -> str:
    if window is None:
        stem = path.rsplit("/", 1)[-1].removesuffix(nsys_cli.RAW_SUFFIX).removesuffix(nsys_cli.SUFFIX)
        return f"profiles/nsight/unknown/{report_names.safe_worker(stem)}{nsys_cli.SUFFIX}"
    log, event = window
    name = report_names.report_name(
        log.worker,
        log.rank,
        event.window,
        event.phase,
        log.host or log.node,
        log.pid,
        nsys_cli.SUFFIX,
    )
    return str(report_names.report_folder("nsight", log.worker, log.rank) / name)


def _import(tree: ContainedDir, root: Path, path: str, budget_s: float, most_s: float) -> str:
    importer = nsys_cli.find_importer()
    if importer is None:
        raise ExportFailed(f"QdstrmImporter is not beside the nsys in use here; {_ELSEWHERE}")
    folder = f".recover/{time.time_ns()}-{os.urandom(4).hex()}"
    tree.write_atomic(f"{folder}/import.log", b"")
    root = Path(os.path.abspath(root))  # the importer runs in another folder
    work = root / folder
    link = work / "raw.qdstrm"  # a name of ours: a hostile one could be read as an option
    link.symlink_to((root / path).resolve())
    try:
        argv = nsys_cli.import_argv(importer, link, work / "report.nsys-rep")
        try:
            output = run_bounded(argv, budget_s, str(work), most_s)
        except ExportFailed as error:
            lacking = _LACKING.search(str(error))
            if lacking is None:
                raise
            raise ExportFailed(f"QdstrmImporter lacks {lacking[1]} here; {_ELSEWHERE}") from None
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
