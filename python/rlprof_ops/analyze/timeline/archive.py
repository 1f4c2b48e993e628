"""The archive of all ranks: each trace's compressed bytes moved into a ZIP as they are, with the manifest
that tells Perfetto (v58.2 or later) which machine each file is and where its clock lies.

A gzip member is a raw deflate stream between a header and its CRC and size, which is what a ZIP entry holds,
so nothing is compressed again; `zipfile` compresses what it is given (4 s for 30 MiB of trace). Format of the
manifest: google/perfetto, docs/reference/perfetto-manifest.md, version 1.
"""

from __future__ import annotations

import json
import re
import struct
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from rlprof_ops.analyze.readers.inflate import Inflated

_LIMIT = (1 << 32) - 1  # ZIP without its 64-bit extension, which Perfetto does not promise to read
_COPY_BYTES = 4 << 20
_MAY_WRAP_BYTES = (
    32 << 20
)  # from here on a trace (packed 14 to 20 times, 100 at most) may be larger than 4 GiB
_DEFLATED = 8
_MEMBER = b"\x1f\x8b\x08"
_BASE = re.compile(rb'"baseTimeNanoseconds"\s*:\s*(\d{1,19})')
_HEAD_BYTES = 256 << 10


@dataclass(frozen=True)
class ArchiveMember:
    """One file of the archive: a Chrome trace on disk, or bytes (a Perfetto trace) made for it."""

    name: str
    machine: str
    offset_ns: int  # positive: later on the reference's timeline; see `offset_from`
    source: Path | bytes


@dataclass(frozen=True)
class Stored:
    """An entry as it was written."""

    name: str
    crc: int
    packed: int
    plain: int
    at: int


@dataclass(frozen=True)
class _Deflate:
    """Where the deflate stream of a gzip file lies, and what its trailer says of the plain bytes."""

    begin: int
    size: int
    crc: int
    plain: int


def manifest(members: Sequence[ArchiveMember], attributes: dict[str, str]) -> bytes:
    """The manifest: one machine a rank, all files pinned to the first one's own timeline."""
    reference = members[0]
    files: list[dict[str, object]] = []
    for member in members:
        entry: dict[str, object] = {"path": member.name, "machine": {"name": member.machine}}
        if member is not reference:
            offset = member.offset_ns - reference.offset_ns
            entry["clocks"] = {"sync_to": {"file": reference.name}, "offset_ns": offset}
        files.append(entry)
    said = {
        "perfetto_manifest": {
            "version": 1,
            "files": files,
            "attributes": {k: v for k, v in attributes.items() if k},
        }
    }
    return json.dumps(said, separators=(",", ":")).encode()


def write_archive(
    path: Path,
    members: Sequence[ArchiveMember],
    attributes: dict[str, str],
    sound: Callable[[Path], bool | None] = lambda _: None,
) -> list[tuple[str, str]]:
    """Writes the archive; returns (member, reason) of what had to be left out.

    Parameters
    ----------
    members: in the order they shall be shown; the first is the reference of all clocks sound: what is known
    of a source: True its gzip is whole, False it is not, None unknown (then it is inflated once)
    """
    left_out: list[tuple[str, str]] = []
    entries: list[Stored] = []
    kept: list[ArchiveMember] = []
    with open(path, "wb") as file:
        for member in members:
            begin = file.tell()
            stored = _store(file, member, sound)
            if stored is None:
                file.seek(begin)
                file.truncate()
                left_out.append(
                    (member.name, "larger than 4 GiB, which a ZIP entry cannot hold: open it by itself")
                )
                continue
            entries.append(stored)
            kept.append(member)
        if kept:
            text = manifest(kept, attributes)
            entries.append(_store_bytes(file, "perfetto_manifest.json", text))
        _directory(file, entries)
    return left_out


def _store(file: BinaryIO, member: ArchiveMember, sound: Callable[[Path], bool | None]) -> Stored | None:
    if isinstance(member.source, bytes):
        return _store_bytes(file, member.name, member.source)
    found = _transplantable(member.source, sound)
    if found is None:
        return _recompress(file, member.name, member.source)
    if found.plain > _LIMIT or file.tell() + found.size > _LIMIT - (1 << 24):
        return None
    at = file.tell()
    file.write(_local(member.name, found.crc, found.size, found.plain))
    with open(member.source, "rb") as source:
        source.seek(found.begin)
        left = found.size
        while left:
            piece = source.read(min(_COPY_BYTES, left))
            if not piece:
                break
            file.write(piece)
            left -= len(piece)
    return Stored(member.name, found.crc, found.size, found.plain, at)


def _transplantable(path: Path, sound: Callable[[Path], bool | None]) -> _Deflate | None:
    """The deflate stream of a whole gzip file of one member below 4 GiB, else None."""
    size = path.stat().st_size
    with open(path, "rb") as file:
        head = file.read(64 << 10)
        begin = _header_length(head)
        if begin is None or size < begin + 8:
            return None
        file.seek(size - 8)
        crc, plain = struct.unpack("<II", file.read(8))
    known = sound(path)
    if known is False or _may_have_members(path, begin):
        return None
    if known is None or size > _MAY_WRAP_BYTES:
        known = _inflates_to(path, plain)
    return _Deflate(begin, size - 8 - begin, crc, plain) if known else None


def _header_length(head: bytes) -> int | None:
    """Length of a gzip header (RFC 1952), None when it is none."""
    if len(head) < 18 or not head.startswith(b"\x1f\x8b\x08"):
        return None
    flags, at = head[3], 10
    if flags & 4:
        at += 2 + struct.unpack_from("<H", head, at)[0]
    for flag in (8, 16):  # name, comment: up to a zero byte
        if flags & flag:
            end = head.find(b"\0", at)
            if end < 0:
                return None
            at = end + 1
    return at + (2 if flags & 2 else 0)


def _may_have_members(path: Path, begin: int) -> bool:
    """Whether a second gzip header may stand in the file: without one it has a single member for certain."""
    with open(path, "rb") as file:
        file.seek(begin)
        tail = b""
        while piece := file.read(_COPY_BYTES):
            text = tail + piece
            at = text.find(_MEMBER)
            while at >= 0:
                if _plausible(text[at : at + 10]):
                    return True
                at = text.find(_MEMBER, at + 1)
            tail = piece[-16:]
    return False


def _plausible(head: bytes) -> bool:
    """Whether ten bytes can be a gzip header: no reserved flag, a known compression level and operating
    system.
    """
    return len(head) < 10 or (head[3] < 32 and head[8] in (0, 2, 4) and (head[9] < 14 or head[9] == 255))


def base_ns(path: Path) -> int:
    """`baseTimeNanoseconds` of a torch trace, 0 where it has none: from its head, or, where it stands
    behind the events, from the whole of it.
    """
    head, rest = b"", iter(Inflated(path, _HEAD_BYTES))
    for piece in rest:
        head += piece
        if len(head) >= _HEAD_BYTES:
            break
    begin = head.find(b'"traceEvents"')
    found = _BASE.search(head[: begin if begin >= 0 else len(head)])
    tail = head[-64:]
    while found is None:
        piece = next(rest, b"")
        found = _BASE.search(tail + piece) if piece else _BASE.search(head)
        if not piece:
            break
        tail = piece[-64:]
    return int(found.group(1)) if found else 0


def _inflates_to(path: Path, plain: int) -> bool:
    """Inflates the file once: whether it is whole and as long as its trailer, which counts modulo 4 GiB,
    says.
    """
    stream, total = Inflated(path), 0
    for piece in stream:
        total += len(piece)
    return not stream.truncated and total == plain


def _recompress(file: BinaryIO, name: str, path: Path) -> Stored | None:
    """Packs a plain, truncated or many-membered file anew."""
    at = file.tell()
    file.write(_local(name, 0, 0, 0))
    deflater = zlib.compressobj(1, zlib.DEFLATED, -15)
    crc = plain = packed = 0
    for piece in Inflated(path):
        crc = zlib.crc32(piece, crc)
        plain += len(piece)
        packed += file.write(deflater.compress(piece))
        if max(plain, at + packed) > _LIMIT - (1 << 24):
            return None
    packed += file.write(deflater.flush())
    end = file.tell()
    file.seek(at)
    file.write(_local(name, crc, packed, plain))
    file.seek(end)
    return Stored(name, crc, packed, plain, at)


def _store_bytes(file: BinaryIO, name: str, data: bytes) -> Stored:
    at = file.tell()
    deflater = zlib.compressobj(6, zlib.DEFLATED, -15)
    packed = deflater.compress(data) + deflater.flush()
    crc = zlib.crc32(data)
    file.write(_local(name, crc, len(packed), len(data)) + packed)
    return Stored(name, crc, len(packed), len(data), at)


_UTF8 = 1 << 11
_DATE = (2026 - 1980) << 9 | 1 << 5 | 1  # fixed, so that the same traces make the same archive


def _local(name: str, crc: int, packed: int, plain: int) -> bytes:
    encoded = name.encode()
    return (
        struct.pack(
            "<4s5H3I2H", b"PK\3\4", 20, _UTF8, _DEFLATED, 0, _DATE, crc, packed, plain, len(encoded), 0
        )
        + encoded
    )


def _directory(file: BinaryIO, entries: Sequence[Stored]) -> None:
    begin = file.tell()
    for e in entries:
        encoded = e.name.encode()
        sizes = (e.crc, e.packed, e.plain, len(encoded))
        fixed = (b"PK\1\2", 20, 20, _UTF8, _DEFLATED, 0, _DATE, *sizes, 0, 0, 0, 0, 0, e.at)
        file.write(struct.pack("<4s6H3I5H2I", *fixed) + encoded)
    size = file.tell() - begin
    file.write(struct.pack("<4s4H2IH", b"PK\5\6", 0, 0, len(entries), len(entries), size, begin, 0))
