"""Logs that grow: each pass appends what is new, and what was sent is never overwritten by something else."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass

from rlprof_ops.collect.sync.copy_bytes import Copied, Limiter, copy
from rlprof_ops.collect.sync.routes import Item, Kind
from rlprof_ops.host.contained_dir import ContainedDir

_OVERLAP = 64 << 10  # bytes compared before a log is continued after a restart
_ASIDES = 5  # earlier contents of one log that are kept


@dataclass
class _Growing:
    """A log as far as it has been sent."""

    inode: int
    offset: int
    mtime_ns: int


class Tails:
    """The logs of one node as far as they were sent; `to_temporary` is the sender's, for those that are
    sent whole.
    """

    def __init__(
        self, to_temporary: Callable[..., tuple[str, Copied]], limiter: Limiter, stop: Callable[[], bool]
    ) -> None:
        self._to_temporary, self._limiter, self._stop = to_temporary, limiter, stop
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
        end = now.st_size if last or item.kind is Kind.GROWING else _end_of_lines(fd, now.st_size)
        known = self._growing.get(item.source)
        if known is None:
            known = self._continue_after_restart(fd, target, item, now)
        elif not self._is_continued(fd, target, item, known, now):
            if known.inode not in live or known.inode == now.st_ino:
                self._set_aside(target, item.target)
            known = None
        if known is None:
            temporary, copied = self._to_temporary(fd, target, now, durable=last, length=end)
            target.rename(temporary, item.target)
            self._growing[item.source] = _Growing(now.st_ino, copied.size_bytes, now.st_mtime_ns)
            return copied.size_bytes
        before = known.offset
        try:
            self._append(fd, target, item.target, known, end, durable=last)
        finally:
            self._growing[item.source] = known
        known.mtime_ns = now.st_mtime_ns
        return known.offset - before or None

    def _append(
        self, fd: int, target: ContainedDir, place: str, known: _Growing, end: int, *, durable: bool
    ) -> None:
        if end <= known.offset:
            return
        os.lseek(fd, known.offset, os.SEEK_SET)
        out = target.open_write(place, os.O_APPEND)
        try:
            copy(fd, out, size_hint=0, length=end - known.offset, limiter=self._limiter, stop=self._stop)
            if durable:
                os.fsync(out)
        finally:
            try:
                known.offset = os.fstat(out).st_size  # right also after a write that came half way
            finally:
                os.close(out)

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
                os.pread(fd, count, start) == os.pread(theirs, count, start)
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


def _end_of_lines(fd: int, size: int) -> int:
    """The offset after the last line break; `size` when the last 64 KiB hold none."""
    start = max(0, size - _OVERLAP)
    found = os.pread(fd, size - start, start).rfind(b"\n")
    if found >= 0:
        return start + found + 1
    return size if start else 0
