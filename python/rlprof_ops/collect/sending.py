"""Sends one file: a finished report once and checked, a log by its new tail, a few rewritten bytes whole."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable
from dataclasses import dataclass

from rlprof_ops.collect.beneath import Beneath
from rlprof_ops.collect.copier import LARGE, Copied, Digesting, Limiter, copy, copy_in_kernel, digest_of
from rlprof_ops.collect.mask import MASKED_SUFFIXES, mask_file, secret_values, secrets_of_processes
from rlprof_ops.collect.routes import Kind
from rlprof_ops.collect.syncstate import Journal, Sent

_OVERLAP = 64 << 10  # bytes compared before a log is continued after a restart
_ASIDES = 5  # earlier contents of one log that are kept
_SMALL = 64 << 10  # the most a file that is rewritten in place may hold


@dataclass(frozen=True)
class Item:
    """A file to look at: where it is below the node folder, where it goes below the run folder, its stat."""

    source: str
    target: str
    kind: Kind
    found: os.stat_result


class SourceError(Exception):
    """Reading the node's own file failed; the storage is not to blame."""


def reason_of(error: BaseException) -> str:
    """An error as a person reads it, without a Python class name when the system named it."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return str(error) or type(error).__name__


@dataclass
class _Growing:
    """A log as far as it has been sent."""

    inode: int
    offset: int
    mtime_ns: int


class Sender:
    """Knows what has been sent and sends what has not; `stop()` turning true ends a copy between two blocks."""

    def __init__(self, journal: Journal, node: str, limiter: Limiter, stop: Callable[[], bool], log: Callable[[str], None]) -> None:
        self._journal, self._node, self._limiter, self._stop, self._log = journal, node, limiter, stop, log
        self._secrets = secret_values(os.environ)
        self._growing: dict[str, _Growing] = {}
        self._small: dict[str, bytes] = {}
        self._numbers = itertools.count()
        self._temporaries = f".sync/{node}"

    def forget(self) -> None:
        """The run folder is another one: nothing has been sent to it."""
        self._journal.forget()
        self._growing.clear()
        self._small.clear()

    def sweep(self, target: Beneath) -> None:
        """Remove temporary files that a killed predecessor left."""
        for relative, _ in list(target.files(self._temporaries)):
            target.unlink(relative)

    def is_sent(self, item: Item, target: Beneath, *, thorough: bool) -> bool:
        """Whether the run folder has the file as it is now; `thorough` looks there instead of trusting memory."""
        found = item.found
        if item.kind is Kind.REWRITTEN:
            return False
        if item.kind in (Kind.GROWING, Kind.LINES):
            known = self._growing.get(item.source)
            same = known is not None and (known.inode, known.offset, known.mtime_ns) == (found.st_ino, found.st_size, found.st_mtime_ns)
            return same and not thorough  # a thorough look compares the beginning and the end of both
        else:
            sent = self._journal.sent.get(item.source)
            if sent is None or not sent.same_source(found):
                return False
            place, size = sent.target, sent.size_bytes
        if not thorough:
            return True
        there = target.stat(place)
        return there is not None and there.st_size == size

    def send(self, source: Beneath, target: Beneath, item: Item, live: frozenset[int], last: bool) -> int | None:
        """Bring one file over; returns the bytes sent, None when nothing was new.

        `live` are the inodes of other files of this pass: a log that was rotated is among them under its new name.
        Raises `SourceError`, OSError of the target, `copier.Stopped`.
        """
        if item.kind is Kind.REWRITTEN:
            return self._send_small(source, target, item)
        try:
            fd = source.open_read(item.source)
        except FileNotFoundError:
            raise
        except OSError as error:
            raise SourceError(reason_of(error)) from error
        if item.source.endswith(MASKED_SUFFIXES):
            self._mask(fd, item)
        try:
            if item.kind in (Kind.GROWING, Kind.LINES):
                return self._send_log(fd, target, item, live, last)
            return self._send_finished(fd, target, item)
        finally:
            os.close(fd)

    def _mask(self, fd: int, item: Item) -> None:
        """Take secrets out of the node's own file, which is finished, before anything of it goes to shared storage."""
        sent = self._journal.sent.get(item.source)
        if sent is not None and sent.same_source(os.fstat(fd)):
            return
        try:
            # Through the open file: the name may have become another file's.
            writable = os.open(f"/proc/self/fd/{fd}", os.O_RDWR | os.O_CLOEXEC)
        except OSError as error:
            self._log(f"{item.source!r} cannot be searched for secrets: {reason_of(error)}")
            return
        try:
            before = os.fstat(writable)
            self._secrets |= secrets_of_processes()
            if mask_file(writable, self._secrets, self._stop):
                os.utime(writable, ns=(before.st_atime_ns, before.st_mtime_ns))
        finally:
            os.close(writable)

    def _send_small(self, source: Beneath, target: Beneath, item: Item) -> int | None:
        data = source.read(item.source, _SMALL)
        if self._small.get(item.source) == data:
            return None
        target.write_atomic(item.target, data)
        self._small[item.source] = data
        return len(data)

    # -- finished files ------------------------------------------------------------------------------------------

    def _send_finished(self, fd: int, target: Beneath, item: Item) -> int | None:
        before = os.fstat(fd)
        sent = self._journal.sent.get(item.source)
        place = sent.target if sent is not None else item.target
        # The digest of a large file is taken meanwhile and may end after the file has arrived; `sent` is what has a digest.
        digesting = Digesting(fd, self._stop) if before.st_size >= LARGE and not _has_holes(before) else None
        try:
            temporary, copied = self._to_temporary(fd, target, before, durable=True, in_kernel=digesting is not None)
            try:
                after = os.fstat(fd)
                if (after.st_size, after.st_mtime_ns, copied.size_bytes) != (before.st_size, before.st_mtime_ns, before.st_size):
                    raise SourceError("it changed while it was copied; the next pass tries again")
                put = self._put(target, temporary, place, lambda: digesting.result() if digesting else copied, replace=sent is not None)
            except BaseException:
                target.unlink(temporary)
                raise
        finally:
            digest = digesting.result() if digesting else None
        sha256 = (digest or copied).sha256
        self._journal.add(item.source, Sent(put or place, before.st_size, before.st_mtime_ns, before.st_ino, sha256))
        return copied.size_bytes if put else None

    def _put(self, target: Beneath, temporary: str, place: str, copied: Callable[[], Copied], *, replace: bool) -> str | None:
        """Rename into place and return the name; None when the very file is there already (the journal was lost).

        A file that another node put there under the same name is never overwritten.
        """
        try:
            target.rename(temporary, place, replace=replace)
            return place
        except FileExistsError:
            if self._holds(target, place, copied()):
                target.unlink(temporary)
                return None
        folder, _, name = place.rpartition("/")
        other = f"{folder}/{self._node}~{name}"
        self._log(f"{place!r} is there already with other content: kept both, this one as {other!r}")
        target.rename(temporary, other)
        return other

    def _holds(self, target: Beneath, place: str, copied: Copied) -> bool:
        there = target.stat(place)
        if there is None or there.st_size != copied.size_bytes:
            return False
        fd = target.open_read(place)
        try:
            return digest_of(fd, self._stop) == copied
        finally:
            os.close(fd)

    def _to_temporary(self, fd: int, target: Beneath, before: os.stat_result, *, durable: bool,
                      length: int | None = None, in_kernel: bool = False) -> tuple[str, Copied]:
        """Copy all of `fd` to a new temporary file; removed again when that fails. `in_kernel` leaves the digest empty."""
        temporary = f"{self._temporaries}/{os.getpid()}-{next(self._numbers)}"
        out = target.open_write(temporary)
        try:
            try:
                if in_kernel:
                    copied = Copied(copy_in_kernel(fd, out, limiter=self._limiter, stop=self._stop), "")
                else:
                    copied = copy(fd, out, size_hint=before.st_size, length=length, sparse=_has_holes(before), limiter=self._limiter, stop=self._stop)
                os.utime(out, ns=(before.st_mtime_ns, before.st_mtime_ns))
                if durable:
                    os.fsync(out)
                written = os.fstat(out).st_size
            finally:
                os.close(out)
            if written != copied.size_bytes:
                raise OSError(5, f"the storage holds {written} of {copied.size_bytes} bytes")
        except BaseException:
            try:
                target.unlink(temporary)
            except OSError:
                pass  # a storage that fails now; the next start sweeps
            raise
        return temporary, copied

    # -- logs ----------------------------------------------------------------------------------------------------

    def _send_log(self, fd: int, target: Beneath, item: Item, live: frozenset[int], last: bool) -> int | None:
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

    def _append(self, fd: int, target: Beneath, place: str, known: _Growing, end: int, *, durable: bool) -> None:
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

    def _is_continued(self, fd: int, target: Beneath, item: Item, known: _Growing, now: os.stat_result) -> bool:
        """Whether the source still begins with what was sent."""
        if known.inode != now.st_ino or now.st_size < known.offset:
            return False
        there = target.stat(item.target)
        if there is None or there.st_size != known.offset:
            return False
        # Also when it has grown: it may have been truncated and written past the old end since.
        return self._overlaps(fd, target, item.target, known.offset)

    def _continue_after_restart(self, fd: int, target: Beneath, item: Item, now: os.stat_result) -> _Growing | None:
        there = target.stat(item.target)
        if there is None:
            return None
        if there.st_size <= now.st_size and self._overlaps(fd, target, item.target, there.st_size):
            return _Growing(now.st_ino, there.st_size, now.st_mtime_ns)
        self._set_aside(target, item.target)
        return None

    def _overlaps(self, fd: int, target: Beneath, place: str, size: int) -> bool:
        theirs = target.open_read(place)
        try:
            return all(
                os.pread(fd, count, start) == os.pread(theirs, count, start)
                for start, count in ((0, min(size, 4096)), (max(0, size - _OVERLAP), min(size, _OVERLAP)))
            )
        finally:
            os.close(theirs)

    def _set_aside(self, target: Beneath, place: str) -> None:
        """The source was truncated or replaced: what was sent may be the only copy, so it gets another name."""
        there = target.stat(place)
        if there is None or there.st_size == 0:
            return
        for number in range(1, _ASIDES + 1):
            try:
                target.rename(place, f"{place}.before-{number}", replace=False)
                return
            except FileExistsError:
                continue


def _has_holes(found: os.stat_result) -> bool:
    return found.st_blocks * 512 < found.st_size


def _end_of_lines(fd: int, size: int) -> int:
    """The offset after the last line break; `size` when the last 64 KiB hold none."""
    start = max(0, size - _OVERLAP)
    found = os.pread(fd, size - start, start).rfind(b"\n")
    if found >= 0:
        return start + found + 1
    return size if start else 0
