"""A node's record on disk: compressed blocks that are only ever appended, and the rows since the last one.

Rows go to `tail` at once, so that a kill loses nothing that was told, and into `record` as one block a
minute, which keeps the file small and the shared storage quiet. A block that is cut off is not read, and
neither is a tail whose block is there already.
"""

from __future__ import annotations

import contextlib
import errno
import os
import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from rlprof_ops.host import foreign
from rlprof_ops.recorder import rows

FOLDER = "record"
RECORD, TAIL = "record.bin", "tail.bin"
_MAGIC = b"RLPR"
_BLOCK = struct.Struct("<4sIqII")  # magic, number, base (Unix ns), bytes that follow, their checksum
_SECTION = struct.Struct("<BI")  # kind of row, bytes
_TAIL = struct.Struct("<4sIq")  # magic, the number that its block gets, base
_ROW = struct.Struct("<BH")  # kind, bytes
BLOCK_BYTES = 128 << 10  # of rows
_MOST_UNSEALED = 16 * BLOCK_BYTES  # that are kept for a disk with room again
_MOST_BLOCK = _MOST_TAIL = 64 << 20


@dataclass(frozen=True)
class RecordBlock:
    """Rows of one kind after the other, by kind; samples count from `base_ns`."""

    number: int
    base_ns: int
    sections: dict[int, bytes]

    def names(self) -> dict[int, str]:
        return rows.read_names(self.sections.get(rows.NAME, b""))


class RecordFile:
    """The writer. Its folder is on the node's own disk; a full disk costs rows, never an exception."""

    def __init__(self, folder: Path) -> None:
        """Goes on where a writer that was killed has stopped. Raises OSError where it cannot write."""
        folder.mkdir(mode=0o700, exist_ok=True)
        self._record, self._tail_path = folder / RECORD, folder / TAIL
        self._cut_off()
        self._number = 1 + max((block.number for block in read(self._record)), default=0)
        left = read_tail(self._tail_path)
        self._sections: dict[int, bytearray] = {}
        self._bytes, self._most = 0, BLOCK_BYTES
        self.base_ns = 0
        self._tail = -1
        if left is not None and left.number == self._number and left.sections:
            self._sections = {kind: bytearray(data) for kind, data in left.sections.items()}
            self.base_ns = left.base_ns
            self.seal()

    @property
    def size_bytes(self) -> int:
        """Bytes of finished blocks."""
        try:
            return self._record.stat().st_size
        except OSError:
            return 0

    @property
    def full(self) -> bool:
        return self._bytes >= self._most

    def begin(self, base_ns: int) -> None:
        """The first rows of a block come now. Rows that no disk has taken yet are still those of theirs."""
        if not self._sections:
            self.base_ns = base_ns

    def add(self, found: list[tuple[int, bytes]]) -> None:
        """Keep these rows, each with its kind."""
        if not found:
            return
        data = bytearray()
        for kind, row in found:
            self._sections.setdefault(kind, bytearray()).extend(row)
            data += _ROW.pack(kind, len(row)) + row
        self._bytes += len(data)
        with contextlib.suppress(OSError):
            if self._tail < 0:
                flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_CLOEXEC
                self._tail = os.open(self._tail_path, flags, 0o600)
            if not os.fstat(self._tail).st_size:
                data[:0] = _TAIL.pack(_MAGIC, self._number, self.base_ns)
            _append(self._tail, data)

    def seal(self) -> None:
        """Make one block of the rows so far. A full disk has them wait for the next time, so many as fit."""
        if not self._sections:
            return
        body = b"".join(
            _SECTION.pack(kind, len(data)) + _by_column(kind, bytes(data))
            for kind, data in sorted(self._sections.items())
        )
        packed = zlib.compress(body, 6)
        head = _BLOCK.pack(_MAGIC, self._number, self.base_ns, len(packed), zlib.crc32(packed))
        if not self._take(head + packed) and self._bytes < _MOST_UNSEALED:
            self._most = self._bytes + BLOCK_BYTES
            return
        self._number += 1
        self._sections, self._bytes, self._most = {}, 0, BLOCK_BYTES
        if self._tail >= 0:
            os.close(self._tail)
            self._tail = -1

    def _take(self, block: bytes) -> bool:
        with contextlib.suppress(OSError):
            descriptor = os.open(self._record, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
            try:
                _append(descriptor, block)
                return True
            finally:
                os.close(descriptor)
        return False

    def _cut_off(self) -> None:
        """Take away half a block at the end: whoever was killed there has its rows in the tail."""
        try:
            size = self._record.stat().st_size
        except FileNotFoundError:
            return
        so_far = ReadSoFar()
        for _ in read(self._record, so_far):
            pass
        if so_far.end < size:
            os.truncate(self._record, so_far.end)


def _append(descriptor: int, data: bytes | bytearray) -> None:
    """All of it or nothing: what a full disk has taken of it would make unreadable what comes after. Raises
    OSError.
    """
    size = os.fstat(descriptor).st_size
    try:
        if os.write(descriptor, data) < len(data):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    except OSError:
        os.ftruncate(descriptor, size)
        raise


@dataclass
class ReadSoFar:
    """How far a record has been read: to which byte, and its last block there, where and with which head."""

    end: int = 0
    number: int = 0
    begin: int = 0
    head: bytes = b""


def read_folder(folder: Path, so_far: ReadSoFar | None = None) -> Iterator[RecordBlock]:
    """Everything that a node has recorded, its tail included; of blocks those after `so_far`, as `read`."""
    so_far = so_far or ReadSoFar()
    yield from read(folder / RECORD, so_far)
    left = read_tail(folder / TAIL)
    if left is not None and left.number > so_far.number:
        yield left


def read(path: Path, so_far: ReadSoFar | None = None) -> Iterator[RecordBlock]:
    """The whole blocks of a record, in order; nothing for a file that is not there. `so_far`: only what
    follows, and it moves on; where another record has taken the place, all of that.
    """
    so_far = so_far or ReadSoFar()
    try:
        file = foreign.open_plain(path, os.O_NOFOLLOW)
    except OSError:
        return
    with file:
        file.seek(so_far.begin)
        if file.read(len(so_far.head)) != so_far.head:
            so_far.end, so_far.number, so_far.begin, so_far.head = 0, 0, 0, b""
        file.seek(so_far.end)
        while len(head := file.read(_BLOCK.size)) == _BLOCK.size:
            magic, number, base_ns, size, checksum = _BLOCK.unpack(head)
            packed = file.read(size) if magic == _MAGIC and size <= _MOST_BLOCK else b""
            if len(packed) != size or not size or zlib.crc32(packed) != checksum:
                return
            inflate = zlib.decompressobj()
            try:
                body = inflate.decompress(packed, _MOST_BLOCK)
            except zlib.error:
                return
            so_far.number, so_far.begin, so_far.head = number, so_far.end, head
            so_far.end += len(head) + size
            yield RecordBlock(number, base_ns, _sections(body))


def _sections(body: bytes) -> dict[int, bytes]:
    found: dict[int, bytes] = {}
    place = 0
    while place + _SECTION.size <= len(body):
        kind, size = _SECTION.unpack_from(body, place)
        place += _SECTION.size
        found[kind] = _by_row(kind, body[place : place + size])
        place += size
    return found


def _by_column(kind: int, data: bytes) -> bytes:
    """The first byte of every row, then the second: what changes little stands together and packs well."""
    width = rows.LAYOUT[kind][0].size if kind in rows.LAYOUT else 1
    return b"".join(data[place::width] for place in range(width))


def _by_row(kind: int, data: bytes) -> bytes:
    width = rows.LAYOUT[kind][0].size if kind in rows.LAYOUT else 1
    count = len(data) // width
    found = bytearray(count * width)
    for place in range(width):
        found[place::width] = data[place * count : (place + 1) * count]
    return bytes(found)


def read_tail(path: Path) -> RecordBlock | None:
    """The rows since the last block; None where there are none."""
    try:
        data = foreign.read_bytes(path, _MOST_TAIL)
    except (OSError, ValueError):
        return None
    if len(data) < _TAIL.size:
        return None
    magic, number, base_ns = _TAIL.unpack_from(data)
    if magic != _MAGIC:
        return None
    found: dict[int, bytearray] = {}
    place = _TAIL.size
    while place + _ROW.size <= len(data):
        kind, size = _ROW.unpack_from(data, place)
        place += _ROW.size
        if place + size > len(data):
            break
        found.setdefault(kind, bytearray()).extend(data[place : place + size])
        place += size
    return RecordBlock(number, base_ns, {kind: bytes(part) for kind, part in found.items()})
