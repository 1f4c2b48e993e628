"""Sends one file: a finished report once and checked, a log by its new tail, a few rewritten bytes whole."""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import itertools
import os
import time
from collections.abc import Callable

from rlprof_ops import backends
from rlprof_ops.collect.sync.append_logs import Tails
from rlprof_ops.collect.sync.copy_bytes import (
    LARGE,
    Copied,
    Digesting,
    Limiter,
    Stopped,
    copy,
    copy_in_kernel,
    digest_of,
)
from rlprof_ops.collect.sync.routes import GROWS, Item, Kind, are_columns
from rlprof_ops.collect.sync.sent_log import Sent, SentLog
from rlprof_ops.host import foreign
from rlprof_ops.host.contained_dir import ContainedDir
from rlprof_ops.redact import binary_files, kept_secrets, own_secrets
from rlprof_ops.window.report_file import exchange

_SECRETS_KEPT_S = 30.0  # between two looks at the environments of all of this node's processes
_NEW_S = 0.9  # between two looks at those of new ones: live logs go home every second
_SMALL = 64 << 10  # the most a file that is rewritten in place may hold


class SourceError(Exception):
    """Reading the node's own file failed; the storage is not to blame."""


class Sender:
    """Knows what has been sent and sends what has not; `stop()` turning true ends a copy between two
    blocks.
    """

    def __init__(
        self,
        journal: SentLog,
        node: str,
        limiter: Limiter,
        stop: Callable[[], bool],
        log: Callable[[str], None],
    ) -> None:
        self._journal, self._node, self._limiter, self._stop, self._log = journal, node, limiter, stop, log
        self._kept = kept_secrets.read(journal.path.parent)
        self._secrets = own_secrets() | self._kept
        self._look_again = self._look_at_new = 0.0
        self._seen: frozenset[str] = frozenset()
        self._before: frozenset[str] = frozenset()
        self._tails = Tails(self.new_temporary, discard, self.secrets, limiter, stop)
        self._small: dict[str, bytes] = {}
        self._numbers = itertools.count()
        self._temporaries = f".sync/{node}"

    def forget(self) -> None:
        """The run folder is another one: nothing has been sent to it."""
        self._journal.forget()
        self._tails.forget()
        self._small.clear()

    def close(self) -> None:
        """Nothing more will be sent."""
        self._tails.forget()

    def sweep(self, target: ContainedDir) -> None:
        """Remove temporary files that a killed predecessor left."""
        for relative, _ in list(target.files(self._temporaries)):
            target.unlink(relative)

    def is_sent(self, item: Item, target: ContainedDir, *, thorough: bool) -> bool:
        """Whether the run folder has the file as it is now; `thorough` looks there instead of trusting
        memory.
        """
        found = item.found
        if item.kind is Kind.REWRITTEN:
            return False
        if item.kind in GROWS:
            return (
                self._tails.is_sent(item) and not thorough
            )  # a thorough look compares the beginning and the end of both
        else:
            sent = self._journal.sent.get(item.source)
            if sent is None or not sent.same_source(found):
                return False
            place, size = sent.target, sent.size_bytes
        if not thorough:
            return True
        there = target.stat(place)
        return there is not None and there.st_size == size

    def send(
        self, source: ContainedDir, target: ContainedDir, item: Item, live: frozenset[int], last: bool
    ) -> int | None:
        """Bring one file over; returns the bytes sent, None when nothing was new.

        `live` are the inodes of other files of this pass: a log that was rotated is among them under its new
        name. Raises `SourceError`, OSError of the target, `copier.Stopped`.
        """
        if item.kind is Kind.REWRITTEN:
            return self._send_small(source, target, item)
        fd = self.open(source, item)
        try:
            if item.kind in GROWS:
                return self._tails.send(fd, target, item, live, last)
            return self._send_finished(fd, target, item)
        finally:
            os.close(fd)

    def open(self, source: ContainedDir, item: Item) -> int:
        """A descriptor of the node's own file, secrets taken out of it. Raises FileNotFoundError,
        `SourceError`.
        """
        try:
            if backends.masks(item.source):
                self._mask(source, item)
        except FileNotFoundError:
            raise
        except OSError as error:
            why = foreign.reason_of(error)
            raise SourceError(f"its secrets cannot be taken out, it stays on the node: {why}") from error
        return self._open(source, item.source)

    def _mask(self, source: ContainedDir, item: Item) -> None:
        """Exchange the node's own file, which is finished, for a copy without secrets that still opens."""
        sent, found = self._journal.sent.get(item.source), source.stat(item.source)
        if sent is not None and found is not None and sent.same_source(found):
            return
        exchange(source, item.source, binary_files.maskable(self.secrets()), self._go_on)
        now = source.stat(item.source)
        if sent is not None and found is not None and now is not None and sent.inode == found.st_ino:
            # Written on in its place, it is the same report; its copy without secrets is another file.
            self._journal.add(item.source, dataclasses.replace(sent, inode=now.st_ino))

    def _go_on(self) -> bool:
        """False; raises `Stopped` when this sync is to end."""
        if self._stop():
            raise Stopped
        return False

    def _open(self, source: ContainedDir, path: str) -> int:
        try:
            return source.open_read(path)
        except FileNotFoundError:
            raise
        except OSError as error:
            raise SourceError(foreign.reason_of(error)) from error

    def secrets(self) -> frozenset[str]:
        """Values that must not leave this node."""
        now = time.monotonic()
        if now >= min(self._look_again, self._look_at_new):
            self._look_at_new, pids = now + _NEW_S, binary_files.running()
            seen = self._seen
            if now >= self._look_again:
                self._look_again, seen = now + _SECRETS_KEPT_S, frozenset()
            self._secrets |= binary_files.secrets_of_processes(pids - seen)
            if self._secrets != self._kept and kept_secrets.write(self._journal.path.parent, self._secrets):
                self._kept = self._secrets
            # A new one is looked at twice: before it becomes its program it has its parent's environment.
            self._seen, self._before = pids & self._before, pids
        return self._secrets

    def _send_small(self, source: ContainedDir, target: ContainedDir, item: Item) -> int | None:
        data = source.read(item.source, _SMALL)
        if self._small.get(item.source) == data:
            return None
        target.write_atomic(item.target, data)
        self._small[item.source] = data
        return len(data)

    # -- finished files
    # ------------------------------------------------------------------------------------------

    def _send_finished(self, fd: int, target: ContainedDir, item: Item) -> int | None:
        before = os.fstat(fd)
        # The digest of a large file is taken meanwhile.
        digesting = Digesting(fd, self._stop) if before.st_size >= LARGE and not _has_holes(before) else None
        temporary, out = self.new_temporary(target)
        try:
            try:
                copied = self.write(fd, out, before, in_kernel=digesting is not None)
                os.fsync(out)
                in_time = self.is_whole(out, digesting.result() if digesting else copied)
            except BaseException:
                discard(target, temporary)
                raise
        finally:
            os.close(out)
            digest = digesting.result() if digesting else None
        put = self.put(fd, target, item, temporary, before, copied.size_bytes, lambda: digest or copied)
        self.settle(target, item, put)
        if not in_time:
            raise Stopped
        return self.sent(item, put, before, digest or copied)

    def is_whole(self, out: int, copied: Copied) -> bool:
        """Read a flushed copy back, from the storage where it can be told so. False when there is no time for
        it: such a copy serves, but its source may not go. Raises OSError when it is not what was sent.
        """
        with contextlib.suppress(OSError):
            os.posix_fadvise(out, 0, 0, os.POSIX_FADV_DONTNEED)
        try:
            found = digest_of(out, self._stop)
        except Stopped:
            return False
        if found != copied:
            raise OSError(errno.EBADMSG, "what the storage holds is not what was sent")
        return True

    def settle(self, target: ContainedDir, item: Item, put: str | None) -> None:
        """Bring a copy's name onto the disk."""
        target.flush_folder((put or item.target).rpartition("/")[0])

    def put(
        self,
        fd: int,
        target: ContainedDir,
        item: Item,
        temporary: str,
        before: os.stat_result,
        size: int,
        copied: Callable[[], Copied],
    ) -> str | None:
        """Give a flushed copy of `size` bytes its name, if its source is still what it was; else the copy
        is removed. See `_put`.

        Raises:
            SourceError: the source has changed while it was copied.
        """
        sent = self._journal.sent.get(item.source)
        try:
            after = os.fstat(fd)
            if (after.st_size, after.st_mtime_ns) != (
                before.st_size,
                before.st_mtime_ns,
            ) or size != before.st_size:
                raise SourceError("it changed while it was copied; the next pass tries again")
            same = sent is not None and (
                sent.inode == before.st_ino or self._are_our_columns(target, item, sent)
            )
            # A file that was written on is the same report; another file under its name is another one.
            place = sent.target if sent is not None and same else item.target
            return self._put(target, temporary, place, copied, replace=same)
        except BaseException:
            target.unlink(temporary)
            raise

    def _are_our_columns(self, target: ContainedDir, item: Item, sent: Sent) -> bool:
        """Whether these are columns, and what lies there are those that were sent before: of a report that
        was read again.
        """
        known = Copied(sent.size_bytes, sent.sha256 or "")
        return are_columns(item.source) and self._holds(target, sent.target, known)

    def sent(self, item: Item, put: str | None, before: os.stat_result, copied: Copied) -> int | None:
        """Note that the file arrived as `put` (None: it was there already); the bytes that went over."""
        known = self._journal.sent.get(item.source)
        place = put or (known.target if known else item.target)
        self._journal.add(
            item.source, Sent(place, before.st_size, before.st_mtime_ns, before.st_ino, copied.sha256)
        )
        return before.st_size if put else None

    def _put(
        self, target: ContainedDir, temporary: str, place: str, copied: Callable[[], Copied], *, replace: bool
    ) -> str | None:
        """Rename into place and return the name; None when the very file is there already (the journal was
        lost).

        A file that another node put there under the same name is never overwritten.
        """
        try:
            target.rename(temporary, place, replace=replace)
            return place
        except FileExistsError:
            # Columns that are there already were made by whoever has read the report there, or are of another
            # node's report: their reader compares the digest.
            if are_columns(place) or self._holds(target, place, copied()):
                target.unlink(temporary)
                return None
        folder, _, name = place.rpartition("/")
        for number in itertools.count(1):
            other = f"{folder}/{self._node}{f'~{number}' if number > 1 else ''}~{name}"
            try:
                target.rename(temporary, other, replace=False)
            except FileExistsError:
                if self._holds(target, other, copied()):
                    target.unlink(temporary)
                    return other
                continue
            self._log(f"{place!r} is there already with other content: kept both, this one as {other!r}")
            return other
        raise AssertionError("unreachable")

    def _holds(self, target: ContainedDir, place: str, copied: Copied) -> bool:
        there = target.stat(place)
        if there is None or there.st_size != copied.size_bytes:
            return False
        fd = target.open_read(place)
        try:
            return digest_of(fd, self._stop) == copied
        finally:
            os.close(fd)

    def new_temporary(self, target: ContainedDir) -> tuple[str, int]:
        """A new file on its way: its name in the run folder and a descriptor to write it."""
        temporary = f"{self._temporaries}/{os.getpid()}-{next(self._numbers)}"
        return temporary, target.open_write(temporary, read_too=True)

    def write(
        self, fd: int, out: int, before: os.stat_result, *, length: int | None = None, in_kernel: bool = False
    ) -> Copied:
        """Copy all of `fd`, or `length` bytes, with its time; not flushed. Raises OSError,
        `copier.Stopped`.
        """
        if in_kernel:
            copied = Copied(copy_in_kernel(fd, out, limiter=self._limiter, stop=self._stop), "")
        else:
            copied = copy(
                fd,
                out,
                size_hint=before.st_size,
                length=length,
                sparse=_has_holes(before),
                limiter=self._limiter,
                stop=self._stop,
            )
        os.utime(out, ns=(before.st_mtime_ns, before.st_mtime_ns))
        written = os.fstat(out).st_size
        if written != copied.size_bytes:
            raise OSError(5, f"the storage holds {written} of {copied.size_bytes} bytes")
        return copied


def discard(target: ContainedDir, temporary: str) -> None:
    """Remove a file on its way; on a storage that fails now the next start sweeps it."""
    try:
        target.unlink(temporary)
    except OSError:
        pass


def _has_holes(found: os.stat_result) -> bool:
    return found.st_blocks * 512 < found.st_size
