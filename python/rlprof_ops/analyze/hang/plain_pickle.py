"""Pickles from anywhere: dumps of the flight recorder and torch's memory snapshots.

A pickle is a program. Here it may only build strings, numbers and plain containers: its operations are looked
at before one of them runs, so that neither an import nor a memo of 68 GB comes to anything.
"""

from __future__ import annotations

import functools
import io
import pickle
import re

from rlprof_ops.host import foreign

_LENGTHS = {0x58: 4, 0x8C: 1, 0x8D: 8}  # BINUNICODE, SHORT_BINUNICODE, BINUNICODE8: bytes of the length
_STOP = 0x2E
_PUT_BYTES = 5  # of LONG_BINPUT: so many a file has at least for each index


def _short(width: int) -> bytes:
    """Strings whose length is one byte, in so many."""
    rest = bytes(width - 1)
    return b"|".join(re.escape(bytes([size]) + rest) + b".{%d}" % size for size in range(1, 128))


@functools.cache
def _plain(highest: int) -> re.Pattern[bytes]:
    """Every operation of fixed length that builds plain data, and short strings. `highest`: third byte of the
    indexes of a memo. At most 1,000 at once, so that what the expression remembers stays small.
    """
    return re.compile(
        rb"(?:[Kqh].[()\]}Nateslu\x85-\x89\x94]*|[()\]}Nateslu\x85-\x89\x94]+|\x8c(?:" + _short(1) + rb")|"
        rb"j....|r..[\x00-" + re.escape(bytes([highest])) + rb"]\x00|X(?:" + _short(4) + rb")|"
        rb"M..|J....|\x80[\x02-\x05]|[G\x95].{8}|\x8a(?:\x00|\x01.|\x02..|\x03...|"
        rb"\x04.{4}|\x05.{5}|\x06.{6}|\x07.{7}|\x08.{8}|\x09.{9})){1,1000}",
        re.DOTALL,
    )


class _PlainUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> object:
        raise pickle.UnpicklingError(f"it names {module[:40]}.{name[:40]}: only plain data is read")

    def persistent_load(self, pid: object) -> object:
        raise pickle.UnpicklingError("it refers to something outside: only plain data is read")


def plain_pickle(raw: bytes) -> object:
    """What a pickle of plain data holds. Raises ValueError for every other one, before any of it runs."""
    at, plain = 0, _plain(min(len(raw) // _PUT_BYTES >> 16, 255))
    while True:
        matched = plain.match(raw, at)
        at = matched.end() if matched else at
        code = raw[at] if at < len(raw) else -1
        if code == _STOP:
            break
        width = _LENGTHS.get(code)
        if width is None and matched:
            continue
        if width is None:
            what = f"operation {code:#x} at byte {at}" if code >= 0 else "its end is missing"
            raise ValueError(f"it is no pickle of plain data: {what}")
        at += 1 + width + int.from_bytes(raw[at + 1 : at + 1 + width], "little")
    try:
        # With a buffer that it may look ahead in, it reads three times as fast.
        return _PlainUnpickler(io.BufferedReader(io.BytesIO(raw), 1 << 17)).load()
    except MemoryError:
        raise ValueError("it is too large for this machine's memory") from None
    except Exception as error:  # whatever a broken one makes the unpickler raise
        raise ValueError(f"it is a broken pickle: {foreign.reason_of(error)[:80]}") from None
