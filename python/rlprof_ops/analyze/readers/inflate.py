"""Opens a trace as a stream of inflated pieces of bounded size, whatever state its compression is in."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import BinaryIO

_zlib: ModuleType = zlib
try:
    from isal import isal_zlib as _zlib
except ImportError:  # pragma: no cover - isal has wheels for every platform we run on
    pass
_ERRORS: tuple[type[Exception], ...] = (_zlib.error, zlib.error)

PIECE_BYTES = 4 << 20
_READ_BYTES = 1 << 20
_GZIP_MAGIC = b"\x1f\x8b"
_GZIP_WINDOW = 31  # zlib's code for "a gzip header, 32 KiB window"


class Inflated:
    """Iterates over the plain bytes of a file, gzip or not; after the end `.truncated` says what was
    missing.
    """

    def __init__(self, path: Path, piece_bytes: int | None = None) -> None:
        self.path = path
        self.piece_bytes = piece_bytes or PIECE_BYTES
        self.truncated = ""

    def __iter__(self) -> Iterator[bytes]:
        with open(self.path, "rb") as file:
            magic = file.read(2)
            file.seek(0)
            yield from self._members(file) if magic == _GZIP_MAGIC else self._plain(file)

    def _plain(self, file: BinaryIO) -> Iterator[bytes]:
        while piece := file.read(self.piece_bytes):
            yield piece

    def _members(self, file: BinaryIO) -> Iterator[bytes]:
        pending = file.read(_READ_BYTES)
        inflater = _zlib.decompressobj(_GZIP_WINDOW)
        while True:
            try:
                piece = inflater.decompress(pending, self.piece_bytes)
            except _ERRORS as error:
                self.truncated = f"the gzip stream is damaged near byte {file.tell()} ({error})"
                return
            if piece:
                yield piece
            pending = inflater.unconsumed_tail
            if inflater.eof:
                pending = inflater.unused_data or file.read(_READ_BYTES)
                if pending[:1] == _GZIP_MAGIC[:1] and len(pending) < 2:
                    pending += file.read(_READ_BYTES)
                if not pending.startswith(
                    _GZIP_MAGIC
                ):  # nothing, or the zero padding of tapes and block devices
                    return
                inflater = _zlib.decompressobj(_GZIP_WINDOW)
            elif not pending:
                if len(piece) == self.piece_bytes:
                    continue  # output limit reached: the inflater may hold more without new input
                pending = file.read(_READ_BYTES)
                if not pending:
                    self.truncated = "the gzip stream ends early"
                    return
