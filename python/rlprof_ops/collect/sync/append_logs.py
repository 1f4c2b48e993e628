"""Logs that grow: each pass appends what is new, and what was sent is never overwritten by something else.

The copies stay open between passes, so that a log that grows costs shared storage one write a pass and no
look-up of its name. Before each write the source is compared with what was sent of it, as remembered; the
last pass compares with the copy itself.
"""

from __future__ import annotations

import contextlib
import errno
import os
import resource
import threading
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass

from rlprof_ops.collect.sync.copy_bytes import Limiter, Stopped, write_all
from rlprof_ops.collect.sync.routes import Item, Kind
from rlprof_ops.host.contained_dir import ContainedDir
from rlprof_ops.redact import CONTEXT_BYTES, may_hold_secret, open_key_at, redact_log

_OVERLAP = 64 << 10  # bytes compared before a log is continued after a restart
_BLOCK = 1 << 20
_ASTERISK = ord("*")
_ASIDES = 5  # earlier contents of one log that have a file of their own; the last one takes all later ones
_BEGINNING, _END = 1024, 4096  # bytes of a log that are remembered
_MOST_OPEN = 1024


@dataclass
class _Growing:
    """A log as far as it has been sent: `beginning` and `end` are of the source, `out` is the open copy."""

    inode: int
    offset: int
    mtime_ns: int
    beginning: bytes = b""
    end: bytes = b""
    out: int | None = None

    def remember(self, fd: int) -> None:
        """Keep what the source holds now at both ends of what was sent."""
        self.beginning = os.pread(fd, min(self.offset, _BEGINNING), 0)
        self.end = os.pread(fd, min(self.offset, _END), max(0, self.offset - _END))

    def is_still(self, fd: int) -> bool:
        """Whether the source holds the same there: it may have been emptied and written past the old end."""
        return self.beginning == os.pread(fd, len(self.beginning), 0) and self.end == os.pread(
            fd, len(self.end), self.offset - len(self.end)
        )

    def close(self) -> None:
        if self.out is not None:
            with contextlib.suppress(OSError):
                os.close(self.out)
            self.out = None


class Tails:
    """The logs of one node as far as they were sent; `new_temporary` and `discard` are the sender's, for
    those that are sent whole, `secrets` gives values to take out.
    """

    def __init__(
        self,
        new_temporary: Callable[[ContainedDir], tuple[str, int]],
        discard: Callable[[ContainedDir, str], None],
        secrets: Callable[[], Collection[str]],
        limiter: Limiter,
        stop: Callable[[], bool],
    ) -> None:
        self._new_temporary, self._discard, self._secrets = new_temporary, discard, secrets
        self._limiter, self._stop = limiter, stop
        self._growing: dict[str, _Growing] = {}
        self._open: dict[str, _Growing] = {}  # the copy written last stands last
        self._most_open = min(_MOST_OPEN, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 4)
        self._lock = threading.Lock()  # files go over on several threads

    def forget(self) -> None:
        """The run folder is another one, or nothing more will be sent."""
        for known in self._growing.values():
            known.close()
        self._growing.clear()
        self._open.clear()

    def is_sent(self, item: Item) -> bool:
        """Whether nothing was added since."""
        known, found = self._growing.get(item.source), item.found
        return known is not None and (known.inode, known.offset, known.mtime_ns) == (
            found.st_ino,
            found.st_size,
            found.st_mtime_ns,
        )

    def send(self, fd: int, target: ContainedDir, item: Item, live: frozenset[int], last: bool) -> int | None:
        now = os.fstat(fd)
        # A secret is known by the line it stands in, so lines go whole, but for the end at the last pass.
        binary = item.kind is Kind.BLOCKS
        end = now.st_size if last or binary else end_of_lines(fd, now.st_size)
        known = self._growing.get(item.source)
        with self._lock:
            self._open.pop(item.source, None)  # in use: no other thread may close it
        if known is None:
            known = self._continue_after_restart(fd, target, item, now)
        elif not self._is_continued(fd, target, item, known, now, last):
            known.close()
            if known.inode not in live or known.inode == now.st_ino:
                self._set_aside(target, item.target)
            known = None
        if known is None:
            self._growing[item.source] = self._send_whole(fd, target, item, now, end, last)
            return end
        self._growing[item.source] = known
        before = known.offset
        if end > before:
            self._append(fd, target, item, known, end, durable=last)
        elif known.out is not None:
            self._keep_open(item.source, known, last)
        known.mtime_ns = now.st_mtime_ns
        known.remember(fd)
        return known.offset - before or None

    def _send_whole(
        self, fd: int, target: ContainedDir, item: Item, now: os.stat_result, end: int, last: bool
    ) -> _Growing:
        temporary, out = self._new_temporary(target)
        known = _Growing(now.st_ino, end, now.st_mtime_ns, out=out)
        try:
            self._copy(fd, out, 0, end, durable=last, binary=item.kind is Kind.BLOCKS)
            target.rename(temporary, item.target)
        except BaseException:
            known.close()
            self._discard(target, temporary)
            raise
        known.remember(fd)
        self._keep_open(item.source, known, last)
        return known

    def _append(
        self, fd: int, target: ContainedDir, item: Item, known: _Growing, end: int, *, durable: bool
    ) -> None:
        was_open = known.out is not None
        if known.out is None:
            known.out = target.open_write(item.target, os.O_APPEND)
        try:
            binary = item.kind is Kind.BLOCKS
            self._copy(fd, known.out, known.offset, end, durable=durable, binary=binary)
            known.offset = end
        except BaseException as error:
            with contextlib.suppress(OSError):
                known.offset = os.fstat(known.out).st_size  # right also after a write that came half way
                known.remember(fd)
            known.close()
            # An NFS server that came back, or has the file anew, knows it by its name alone.
            if not (was_open and isinstance(error, OSError) and error.errno == errno.ESTALE):
                raise
            there = target.stat(item.target)
            known.offset = min(there.st_size, end) if there is not None else known.offset
            self._append(fd, target, item, known, end, durable=durable)
            return
        self._keep_open(item.source, known, durable)

    def _keep_open(self, source: str, known: _Growing, last: bool) -> None:
        """Leave a copy open for the next pass, and close the one that has waited longest when there are too
        many."""
        if last:
            known.close()
            return
        with self._lock:
            self._open[source] = known
            while len(self._open) > self._most_open:
                self._open.pop(next(iter(self._open))).close()

    def _copy(self, fd: int, out: int, start: int, end: int, *, durable: bool, binary: bool) -> None:
        """Bytes `start` to `end` of a log, whose secrets become asterisks of the same length on the way."""
        for block in whole_lines(fd, start, end):
            if self._stop():
                raise Stopped
            self._limiter.take(len(block), self._stop)
            write_all(out, memoryview(block if binary else masked(fd, start, block, self._secrets())))
            start += len(block)
        if durable:
            os.fsync(out)

    def _is_continued(
        self, fd: int, target: ContainedDir, item: Item, known: _Growing, now: os.stat_result, last: bool
    ) -> bool:
        """Whether the source still begins with what was sent. The copy is looked at where it is not open, and
        at the last pass.
        """
        if known.inode != now.st_ino or now.st_size < known.offset or not known.is_still(fd):
            return False
        if known.out is not None and not last:
            return True
        there = target.stat(item.target)
        if there is None or there.st_size != known.offset:
            return False
        return self._overlaps(fd, target, item.target, known.offset)

    def _continue_after_restart(
        self, fd: int, target: ContainedDir, item: Item, now: os.stat_result
    ) -> _Growing | None:
        there = target.stat(item.target)
        if there is None:
            return None
        if there.st_size <= now.st_size and self._overlaps(fd, target, item.target, there.st_size):
            known = _Growing(now.st_ino, there.st_size, now.st_mtime_ns)
            known.remember(fd)
            return known
        self._set_aside(target, item.target)
        return None

    def _overlaps(self, fd: int, target: ContainedDir, place: str, size: int) -> bool:
        theirs = target.open_read(place)
        try:
            return all(
                is_sent_form(os.pread(fd, count, start), os.pread(theirs, count, start))
                for start, count in ((0, min(size, 4096)), (max(0, size - _OVERLAP), min(size, _OVERLAP)))
            )
        finally:
            os.close(theirs)

    def _set_aside(self, target: ContainedDir, place: str) -> None:
        """The source was truncated or replaced: what was sent may be the only copy, so it gets another
        name.
        """
        there = target.stat(place)
        if there is None or there.st_size == 0:
            return
        for number in range(1, _ASIDES + 1):
            try:
                target.rename(place, f"{place}.before-{number}", replace=False)
                return
            except FileExistsError:
                continue
        theirs = target.open_read(place)
        try:
            out = target.open_write(f"{place}.before-{_ASIDES}", os.O_APPEND)
            try:
                while block := os.read(theirs, _BLOCK):
                    write_all(out, memoryview(block))
            finally:
                os.close(out)
        finally:
            os.close(theirs)


def whole_lines(fd: int, start: int, end: int) -> Iterator[bytes]:
    """Bytes `start` to `end` in blocks that end with a line, but for lines longer than a block."""
    while start < end:
        block = os.pread(fd, min(_BLOCK, end - start), start)
        if not block:
            return
        if start + len(block) < end:
            cut = max(block.rfind(b"\n"), block.rfind(b"\r")) + 1
            block = block[:cut] if cut else block
        yield block
        start += len(block)


def masked(fd: int, start: int, block: bytes, secrets: Collection[str]) -> bytes:
    """`block`, which a log holds at `start`, without its secrets.

    What stands before and after it is read again each time, so nothing has to be remembered between two
    passes, or by a sync that is started again.
    """
    earlier = os.pread(fd, min(start, _OVERLAP), start - min(start, _OVERLAP))
    key = open_key_at(earlier)
    before = earlier[min(key, max(0, len(earlier) - CONTEXT_BYTES)) if key >= 0 else -CONTEXT_BYTES :]
    return redact_log(block, secrets, before, os.pread(fd, CONTEXT_BYTES, start + len(block)))


def is_sent_form(ours: bytes, theirs: bytes) -> bool:
    """Whether `theirs` is what was sent of `ours`, in which secrets became asterisks."""
    if len(ours) != len(theirs):
        return False
    return ours == theirs or all(
        one == two or two == _ASTERISK for one, two in zip(ours, theirs, strict=True)
    )


def end_of_lines(fd: int, size: int) -> int:
    """The offset after the last line break. When the last 64 KiB hold none, `size`, but for an end that
    a secret may go on from.
    """
    start = max(0, size - _OVERLAP)
    tail = os.pread(fd, size - start, start)
    found = max(tail.rfind(b"\n"), tail.rfind(b"\r"))  # a progress bar goes back to the line's beginning
    if found >= 0:
        return start + found + 1
    if not start:
        return 0
    return size - CONTEXT_BYTES if may_hold_secret(tail[-CONTEXT_BYTES:]) else size
