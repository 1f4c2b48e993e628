"""A node's record on disk: compressed blocks that are only ever appended, and the rows since the last one.

Rows go to `tail` at once, so that a kill loses nothing that was told, and into `record` as one block a
minute, which keeps the file small and the shared storage quiet. A block that is cut off is not read, and
neither is a tail whose block is there already.
"""

from __future__ import annotations

import contextlib
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
        self._bytes = 0
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
        return self._bytes >= BLOCK_BYTES

    def begin(self, base_ns: int) -> None:
        """The first rows of a block come now."""
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
                data[:0] = _TAIL.pack(_MAGIC, self._number, self.base_ns)
            os.write(self._tail, data)

    def seal(self) -> None:
        """Make one block of the rows so far."""
        if not self._sections:
            return
        body = b"".join(
            _SECTION.pack(kind, len(data)) + _by_column(kind, bytes(data))
            for kind, data in sorted(self._sections.items())
        )
        packed = zlib.compress(body, 6)
        head = _BLOCK.pack(_MAGIC, self._number, self.base_ns, len(packed), zlib.crc32(packed))
        with contextlib.suppress(OSError):
            descriptor = os.open(self._record, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
            try:
                os.write(descriptor, head + packed)
            finally:
                os.close(descriptor)
        self._number += 1
        self._sections, self._bytes = {}, 0
        if self._tail >= 0:
            os.close(self._tail)
            self._tail = -1

    def _cut_off(self) -> None:
        """Take away half a block at the end: whoever was killed there has its rows in the tail."""
        try:
            size = self._record.stat().st_size
        except FileNotFoundError:
            return
        whole = sum(length for _, length in _blocks(self._record))
        if whole < size:
            os.truncate(self._record, whole)


def read(path: Path) -> Iterator[RecordBlock]:
    """The whole blocks of a record, in order; nothing for a file that is not there."""
    for block, _ in _blocks(path):
        yield block


def read_folder(folder: Path) -> Iterator[RecordBlock]:
    """Everything that a node has recorded, its tail included."""
    last = 0
    for block in read(folder / RECORD):
        last = block.number
        yield block
    left = read_tail(folder / TAIL)
    if left is not None and left.number > last:
        yield left


def _blocks(path: Path) -> Iterator[tuple[RecordBlock, int]]:
    try:
        file = foreign.open_plain(path, os.O_NOFOLLOW)
    except OSError:
        return
    with file:
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
            yield RecordBlock(number, base_ns, _sections(body)), len(head) + size


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
