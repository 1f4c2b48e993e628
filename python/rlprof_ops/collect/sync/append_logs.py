"""Logs that grow: each pass appends what is new, and what was sent is never overwritten by something else."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass

from rlprof_ops.collect.sync.copy_bytes import Limiter, Stopped, write_all
from rlprof_ops.collect.sync.routes import Item, Kind
from rlprof_ops.host.contained_dir import ContainedDir
from rlprof_ops.redact import redact_log

_OVERLAP = 64 << 10  # bytes compared before a log is continued after a restart
_BLOCK = 1 << 20
_ASTERISK = ord("*")
_ASIDES = 5  # earlier contents of one log that are kept


@dataclass
class _Growing:
    """A log as far as it has been sent."""

    inode: int
    offset: int
    mtime_ns: int


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

    def forget(self) -> None:
        """The run folder is another one."""
        self._growing.clear()

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
        if known is None:
            known = self._continue_after_restart(fd, target, item, now)
        elif not self._is_continued(fd, target, item, known, now):
            if known.inode not in live or known.inode == now.st_ino:
                self._set_aside(target, item.target)
            known = None
        if known is None:
            temporary, out = self._new_temporary(target)
            try:
                try:
                    self._copy(fd, out, 0, end, durable=last, binary=binary)
                finally:
                    os.close(out)
                target.rename(temporary, item.target)
            except BaseException:
                self._discard(target, temporary)
                raise
            self._growing[item.source] = _Growing(now.st_ino, end, now.st_mtime_ns)
            return end
        before = known.offset
        try:
            self._append(fd, target, item.target, known, end, durable=last, binary=binary)
        finally:
            self._growing[item.source] = known
        known.mtime_ns = now.st_mtime_ns
        return known.offset - before or None

    def _append(
        self,
        fd: int,
        target: ContainedDir,
        place: str,
        known: _Growing,
        end: int,
        *,
        durable: bool,
        binary: bool,
    ) -> None:
        if end <= known.offset:
            return
        out = target.open_write(place, os.O_APPEND)
        try:
            self._copy(fd, out, known.offset, end, durable=durable, binary=binary)
        finally:
            try:
                known.offset = os.fstat(out).st_size  # right also after a write that came half way
            finally:
                os.close(out)

    def _copy(self, fd: int, out: int, start: int, end: int, *, durable: bool, binary: bool) -> None:
        """Bytes `start` to `end` of a log, whose secrets become asterisks of the same length on the way."""
        for block in whole_lines(fd, start, end):
            if self._stop():
                raise Stopped
            self._limiter.take(len(block), self._stop)
            write_all(out, memoryview(block if binary else redact_log(block, self._secrets())))
        if durable:
            os.fsync(out)

    def _is_continued(
        self, fd: int, target: ContainedDir, item: Item, known: _Growing, now: os.stat_result
    ) -> bool:
        """Whether the source still begins with what was sent."""
        if known.inode != now.st_ino or now.st_size < known.offset:
            return False
        there = target.stat(item.target)
        if there is None or there.st_size != known.offset:
            return False
        # Also when it has grown: it may have been truncated and written past the old end since.
        return self._overlaps(fd, target, item.target, known.offset)

    def _continue_after_restart(
        self, fd: int, target: ContainedDir, item: Item, now: os.stat_result
    ) -> _Growing | None:
        there = target.stat(item.target)
        if there is None:
            return None
        if there.st_size <= now.st_size and self._overlaps(fd, target, item.target, there.st_size):
            return _Growing(now.st_ino, there.st_size, now.st_mtime_ns)
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


def is_sent_form(ours: bytes, theirs: bytes) -> bool:
    """Whether `theirs` is what was sent of `ours`, in which secrets became asterisks."""
    if len(ours) != len(theirs):
        return False
    return ours == theirs or all(
        one == two or two == _ASTERISK for one, two in zip(ours, theirs, strict=True)
    )


def end_of_lines(fd: int, size: int) -> int:
    """The offset after the last line break; `size` when the last 64 KiB hold none."""
    start = max(0, size - _OVERLAP)
    tail = os.pread(fd, size - start, start)
    found = max(tail.rfind(b"\n"), tail.rfind(b"\r"))  # a progress bar goes back to the line's beginning
    if found >= 0:
        return start + found + 1
    return size if start else 0
