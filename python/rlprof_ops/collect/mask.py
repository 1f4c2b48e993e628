"""Takes secrets out of nsys reports before they leave a node.

nsys writes the environment of every process that it can read on the node into each report (seen with 2023.4: as
`NAME=value` strings and as name and value of a protobuf message), tokens and passwords included. Values are overwritten
with as many asterisks, so that lengths and offsets stay and the report stays readable.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Mapping

from rlprof_ops.redact import is_secret_name

MASKED_SUFFIXES = (".nsys-rep", ".qdstrm")
_CHUNK = 8 << 20
_HEAD, _TAIL = 1 << 20, 32 << 20  # where the environments stand
_SHORTEST = 6
_STRING = re.compile(rb"(?<![A-Za-z0-9_])([A-Za-z_][A-Za-z0-9_]{1,80})=\"?([^\x00\n;\"]{6,4096})")
_MESSAGE = re.compile(rb"\n([\x02-\x7f])([A-Za-z_][A-Za-z0-9_]{1,125})\x12([\x06-\x7f]|[\x80-\xff][\x01-\x1f])")


def secret_values(env: Mapping[str, str]) -> frozenset[bytes]:
    """Values of the variables that are secret by their name, long enough not to hit by chance."""
    return frozenset(os.fsencode(value) for name, value in env.items() if is_secret_name(name) and len(value) >= _SHORTEST)


def mask_file(fd: int, values: Iterable[bytes], stop: Callable[[], bool] = lambda: False) -> int:
    """Overwrite secrets in the file open for reading and writing at `fd`; returns how many places were overwritten.

    `values` are looked for everywhere; further variables with secret names in the file's first and last part.
    Stops between two blocks when `stop()` turns true; what was masked stays masked.
    """
    size = os.fstat(fd).st_size
    wanted = set(values)
    for start in {0, max(0, size - _TAIL)}:
        length = min(size, _HEAD if start == 0 and size > _TAIL else _TAIL)
        wanted |= found_secrets(os.pread(fd, length, start))
    return _overwrite(fd, size, sorted(wanted, key=len, reverse=True), stop)


def found_secrets(block: bytes) -> set[bytes]:
    """Values of secret variables in a part of a report, in both forms."""
    found: set[bytes] = set()
    for match in _STRING.finditer(block):
        if is_secret_name(match[1].decode()) and not _is_path(match[2]):
            found.add(match[2])
    for match in _MESSAGE.finditer(block):
        name, prefix = match[2], match[3]
        if match[1][0] != len(name) or not is_secret_name(name.decode()):
            continue
        length = prefix[0] if len(prefix) == 1 else (prefix[0] & 0x7F) | prefix[1] << 7
        value = block[match.end() : match.end() + length]
        if len(value) >= _SHORTEST and not _is_path(value):
            found.add(value)
    return {value for value in found if value.strip(b"*")}


def _is_path(value: bytes) -> bool:
    return value.startswith(b"/") and b" " not in value


def _overwrite(fd: int, size: int, values: list[bytes], stop: Callable[[], bool]) -> int:
    if not values:
        return 0
    overlap = max(map(len, values)) - 1
    count = 0
    for start in range(0, size, _CHUNK):
        if stop():
            return count
        block = os.pread(fd, _CHUNK + overlap, start)
        for value in values:
            at = block.find(value)
            while at >= 0:
                os.pwrite(fd, b"*" * len(value), start + at)
                count += 1
                at = block.find(value, at + len(value))
    return count
