"""One pass over a node folder: finds what changed and brings it into the run folder."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from rlprof_ops.collect.sync import send_batch
from rlprof_ops.collect.sync.copy_bytes import Limiter, Stopped
from rlprof_ops.collect.sync.routes import SESSION, Item, Kind, Route, are_columns, kind_of, routes_of
from rlprof_ops.collect.sync.send_file import Sender, SourceError
from rlprof_ops.collect.sync.sent_log import SentLog
from rlprof_ops.host import processes
from rlprof_ops.host.contained_dir import ContainedDir, UnsafeName, safe_component
from rlprof_ops.host.foreign import reason_of
from rlprof_ops.job.folders import pinned_run

# What says that the storage, not the file, is in trouble.
_TARGET_ERRORS = frozenset(
    {
        errno.ENOSPC,
        errno.EDQUOT,
        errno.EROFS,
        errno.EIO,
        errno.ESTALE,
        errno.ENOTCONN,
        errno.ETIMEDOUT,
        errno.EHOSTDOWN,
        errno.EHOSTUNREACH,
        errno.ENODEV,
        errno.ENXIO,
        errno.EREMOTEIO,
    }
)
_TROUBLES_BEFORE_GIVING_UP = 3
_STABLE_AGE_NS = 2_000_000_000


@dataclass
class PassReport:
    """What one pass did, and does while it is under way; `failed` are (path in the node folder, reason),
    `target_error` is set when the storage failed.
    """

    last: bool
    started_ns: int
    seconds: float = 0.0
    scanned: int = 0
    copied: int = 0
    copied_bytes: int = 0
    unchanged: int = 0
    waiting: int = 0
    skipped: int = 0
    failed: list[tuple[str, str]] = field(default_factory=list)
    troubles: int = 0
    target_error: str | None = None
    interrupted: bool = False

    @property
    def complete(self) -> bool:
        """Everything that could be copied is in the run folder."""
        return not self.failed and self.target_error is None and not self.interrupted


class Syncer:
    """Copies a node folder into a run folder, pass by pass; see `docs/contracts.md` for both layouts.

    Never deletes a source, never follows a link, never shows a half-written file. `stop()` turning true ends
    a pass between two blocks; `deadline` (monotonic seconds) is given to the last pass.
    """

    def __init__(
        self,
        node_dir: str | os.PathLike[str],
        run_dir: str | os.PathLike[str],
        node: str,
        *,
        parallel: int = 4,
        bytes_per_s: float = 0,
        stop: Callable[[], bool] = lambda: False,
        log: Callable[[str], None] = lambda message: None,
        nodes: int = 1,
    ) -> None:
        self.node_dir, self.run_dir = Path(node_dir), Path(run_dir)
        self._run = pinned_run(self.run_dir, self.node_dir)
        self.node = safe_component(node, "node name")
        self.parallel, self.nodes = max(1, parallel), nodes
        self.journal = SentLog(self.node_dir / "sync" / "state.jsonl")
        self.limiter = Limiter(bytes_per_s)
        self.sender = Sender(self.journal, self.node, self.limiter, self._stopped, log)
        self._stop, self._log = stop, log
        self._deadline: float | None = None
        self._candidates: dict[str, tuple[int, int]] = {}
        self._quiet_folders: dict[str, tuple[int, int]] = {}
        self._inode: int | None = None  # of the run folder that knows what was sent

    # -- the pass
    # ------------------------------------------------------------------------------------------------

    def pass_(self, *, last: bool = False, deadline: float | None = None) -> PassReport:
        """Copy what changed. `last` waits for nothing and sends raw captures too; it then checks every
        earlier copy.
        """
        started = time.monotonic()
        self._deadline = deadline
        tally = PassReport(last, time.time_ns())
        try:
            with ContainedDir(self.node_dir) as source:
                self._pass(source, tally, last)
        except OSError as error:
            tally.failed.append((".", reason_of(error)))
        if tally.failed or tally.interrupted or tally.target_error:
            self._quiet_folders.clear()  # what failed must be found again
        tally.seconds = time.monotonic() - started
        return tally

    def _pass(self, source: ContainedDir, tally: PassReport, last: bool) -> None:
        try:
            with self._open_target() as target:
                self._check_identity(target, last)
                work = sorted(self._changed(source, target, tally, last), key=_precious_first)
                self._copy_all(source, target, work, tally, last)
        except OSError as error:
            tally.target_error = f"{self.run_dir}: {reason_of(error)}"

    def close(self) -> None:
        self.sender.close()
        self.journal.close()

    def _open_target(self) -> ContainedDir:
        # The folder itself is made by the job's start. Making it here would write to the mount point of a
        # lost file system.
        return self._run.open()

    def _check_identity(self, target: ContainedDir, last: bool) -> None:
        if self._inode is None:
            self.sender.sweep(target)
        elif self._run.inode != self._inode:
            self._log(f"{self.run_dir} is another folder than before: everything is compared again")
            self.sender.forget()
            self._quiet_folders.clear()
        if last:
            self._quiet_folders.clear()
        self._inode = self._run.inode

    def _stopped(self) -> bool:
        return self._stop() or (self._deadline is not None and time.monotonic() > self._deadline)

    # -- what changed
    # --------------------------------------------------------------------------------------------

    def _changed(
        self, source: ContainedDir, target: ContainedDir, tally: PassReport, last: bool
    ) -> Iterator[Item]:
        stable: list[Item] = []
        for route in routes_of(self.node, self._sessions(source), self.nodes):
            if route.last_pass_only and not last:
                continue
            for relative, found in self._within(route, self._walk(source, route, tally, last), tally):
                kind = kind_of(route, relative)
                if kind is None or (kind in (Kind.FINAL, Kind.REWRITTEN) and not last):
                    tally.skipped += 1
                    continue
                if kind is Kind.FINAL:  # nobody writes it any more
                    kind = Kind.BLOCKS if route.kind is Kind.BLOCKS else Kind.GROWING
                tally.scanned += 1
                item = Item(f"{route.source}/{relative}", f"{route.target}/{relative}", kind, found)
                if self.sender.is_sent(item, target, thorough=last):
                    tally.unchanged += 1
                elif kind is Kind.STABLE:
                    stable.append(item)
                else:
                    yield item
        yield from self._settled(stable, tally, last)

    @staticmethod
    def _within(
        route: Route, files: Iterator[tuple[str, os.stat_result]], tally: PassReport
    ) -> Iterator[tuple[str, os.stat_result]]:
        """The files of a route, of a bounded one the oldest that fit: what has gone never has to give way."""
        if route.most_bytes is None:
            yield from files
            return
        left = route.most_bytes
        for relative, found in sorted(files, key=lambda each: (each[1].st_mtime_ns, each[0])):
            if found.st_size > left:
                tally.skipped += 1
                continue
            left -= found.st_size
            yield relative, found

    def _sessions(self, source: ContainedDir) -> tuple[str, ...]:
        try:
            with source.folder(("ray",)) as fd, os.scandir(fd) as entries:
                return tuple(
                    entry.name
                    for entry in entries
                    if SESSION.match(entry.name) and entry.is_dir(follow_symlinks=False)
                )
        except OSError:
            return ()

    def _walk(
        self, source: ContainedDir, route: Route, tally: PassReport, last: bool
    ) -> Iterator[tuple[str, os.stat_result]]:
        """Regular files below a route. Folders of finished files whose own time has not changed are not
        read again.
        """
        try:
            with source.folder(tuple(route.source.split("/"))) as fd:
                yield from self._walk_folder(fd, route, "", tally, last)
        except FileNotFoundError:
            return
        except OSError as error:
            if error.errno not in (errno.ELOOP, errno.ENOTDIR):
                tally.failed.append((route.source, reason_of(error)))
            else:
                tally.skipped += 1

    def _walk_folder(
        self, fd: int, route: Route, prefix: str, tally: PassReport, last: bool
    ) -> Iterator[tuple[str, os.stat_result]]:
        key = f"{route.source}/{prefix}"
        before = os.fstat(fd)
        folders: list[str] = []
        skip_files = False
        if route.kind is Kind.FINISHED and self._quiet_folders.get(key) == (
            before.st_ino,
            before.st_mtime_ns,
        ):
            skip_files = True
        with os.scandir(fd) as entries:
            for entry in entries:
                try:
                    if entry.is_dir(follow_symlinks=False):
                        folders.append(entry.name)
                    elif skip_files:
                        continue
                    elif entry.is_file(follow_symlinks=False):
                        yield prefix + entry.name, entry.stat(follow_symlinks=False)
                    else:
                        tally.skipped += 1
                except FileNotFoundError:
                    continue
        # A change within the clock's grain of the scan would not move the time: such a folder is read once
        # more.
        if route.kind is Kind.FINISHED and time.time_ns() - before.st_mtime_ns > _STABLE_AGE_NS:
            self._quiet_folders[key] = (before.st_ino, before.st_mtime_ns)
        for name in folders:
            try:
                inner = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=fd)
            except OSError as error:
                if error.errno not in (errno.ENOENT, errno.ELOOP, errno.ENOTDIR):
                    tally.failed.append((f"{key}{name}", reason_of(error)))
                continue
            try:
                yield from self._walk_folder(inner, route, f"{prefix}{name}/", tally, last)
            finally:
                os.close(inner)

    def _settled(self, items: list[Item], tally: PassReport, last: bool) -> list[Item]:
        """Files written in place, once they have stopped changing and nobody has them open for writing."""
        quiet: list[Item] = []
        for item in items:
            now = (item.found.st_size, item.found.st_mtime_ns)
            if last or (
                self._candidates.get(item.source) == now and time.time_ns() - now[1] > _STABLE_AGE_NS
            ):
                quiet.append(item)
            else:
                self._candidates[item.source] = now
                tally.waiting += 1
        real = os.path.realpath(self.node_dir)
        busy = processes.writers(frozenset(f"{real}/{item.source}" for item in quiet))
        ready = [item for item in quiet if f"{real}/{item.source}" not in busy]
        tally.waiting += len(quiet) - len(ready)
        if last:
            tally.failed += [
                (item.source, "still being written at the last pass") for item in quiet if item not in ready
            ]
        return ready

    # -- copying
    # -------------------------------------------------------------------------------------------------

    def _copy_all(
        self, source: ContainedDir, target: ContainedDir, work: list[Item], tally: PassReport, last: bool
    ) -> None:
        if not work:
            return
        live = frozenset(item.found.st_ino for item in work)

        def some(items: list[Item]) -> None:
            left = [item for item in items if self._may_go(item, tally, last)]
            for item, outcome in (
                send_batch.send(self.sender, source, target, left) if len(left) > 1 else map(one, left)
            ):
                self._note(source, item, outcome, tally)

        def one(item: Item) -> tuple[Item, int | Exception | None]:
            try:
                return item, self.sender.send(source, target, item, live, last)
            except Exception as error:
                return item, error

        parts: tuple[list[Item], ...] = ([], [], [])  # who sees a report there is to see its columns too
        for item in work:
            parts[0 if _precious_first(item)[0] == 0 else 1 if are_columns(item.source) else 2].append(item)
        for part in parts:
            groups = list(send_batch.grouped(part))
            if self.parallel == 1 or len(groups) < 2:
                for items in groups:
                    some(items)
                continue
            with ThreadPoolExecutor(self.parallel, thread_name_prefix="copy") as pool:
                for _ in pool.map(some, groups):
                    pass

    def _may_go(self, item: Item, tally: PassReport, last: bool) -> bool:
        if tally.target_error is not None:
            tally.failed.append((item.source, "not tried: " + tally.target_error))
            return False
        if self._stopped():
            tally.interrupted = True
            if last:
                tally.failed.append((item.source, "the deadline of the last pass came first"))
            return False
        return True

    def _note(
        self, source: ContainedDir, item: Item, outcome: int | Exception | None, tally: PassReport
    ) -> None:
        """Count what became of one file; raises what is no failure of a file or of the storage."""
        if outcome is None:
            tally.unchanged += 1
        elif isinstance(outcome, int):
            tally.copied += 1
            tally.copied_bytes += outcome
            tally.troubles = 0
        elif isinstance(outcome, Stopped):
            tally.interrupted = True
            tally.failed.append((item.source, "stopped while it was copied"))
        elif isinstance(outcome, FileNotFoundError) and source.stat(item.source) is None:
            pass  # it went away before it was read: nothing to bring home
        elif isinstance(outcome, SourceError):
            tally.failed.append((item.source, str(outcome)))
        elif isinstance(outcome, (OSError, UnsafeName)):
            self._trouble(item, outcome, tally)
        else:
            raise outcome

    def _trouble(self, item: Item, error: Exception, tally: PassReport) -> None:
        reason = reason_of(error)
        tally.failed.append((item.source, reason))
        if isinstance(error, OSError) and error.errno in _TARGET_ERRORS:
            tally.troubles += 1
            # A small file may still fit where a large one did not; a file system that is gone fails every
            # time.
            if tally.troubles >= _TROUBLES_BEFORE_GIVING_UP or error.errno in (
                errno.EROFS,
                errno.ESTALE,
                errno.ENOTCONN,
            ):
                tally.target_error = f"{self.run_dir}: {reason}"


def _precious_first(item: Item) -> tuple[int, int]:
    """Events say what became of each window, reports are the point of it all, logs come last; small files
    first.
    """
    rank = {
        Kind.REWRITTEN: 0,
        Kind.LINES: 0,
        Kind.BLOCKS: 2,
        Kind.FINISHED: 1,
        Kind.STABLE: 2,
        Kind.GROWING: 3,
    }
    return rank[item.kind], item.found.st_size
