"""Takes secrets out of nsys reports before they leave a node.

nsys writes the environment of every process that it can read on the node into each report (seen with 2023.4),
tokens and passwords included, partly inside LZ4 blocks. So the exact values are looked for and overwritten
with as many asterisks: lengths and offsets stay, and a literal of LZ4 stays a literal. A value whose
beginning LZ4 found elsewhere is not seen.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping

from rlprof_ops.redact import is_secret_name

MASKED_SUFFIXES = (".nsys-rep", ".qdstrm")
_CHUNK = 8 << 20
_SHORTEST = 6


def secret_values(env: Mapping[str, str]) -> frozenset[bytes]:
    """Values of the variables that are secret by their name, long enough not to hit by chance."""
    return frozenset(
        os.fsencode(value) for name, value in env.items() if is_secret_name(name) and len(value) >= _SHORTEST
    )


def secrets_of_processes() -> frozenset[bytes]:
    """The same of every process whose environment this one may read, as nsys does."""
    found: set[bytes] = set()
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/environ", "rb") as stream:
                entries = stream.read().split(b"\0")
        except OSError:
            continue
        for entry in entries:
            name, _, value = entry.partition(b"=")
            # A process that wrote its title over its environment leaves anything there: names must look like
            # names.
            if (
                len(value) >= _SHORTEST
                and name.replace(b"_", b"").isalnum()
                and is_secret_name(os.fsdecode(name))
            ):
                found.add(value)
    return frozenset(found)


def mask_file(fd: int, values: Collection[bytes], stop: Callable[[], bool] = lambda: False) -> int:
    """Overwrite `values` wherever they stand in the file open for reading and writing at `fd`; returns how
    many places.

    Stops between two blocks when `stop()` turns true; what was masked stays masked.
    """
    size = os.fstat(fd).st_size
    if not values:
        return 0
    # Longer ones first, or a shorter one that is their beginning would hide them.
    ordered = sorted(values, key=len, reverse=True)
    overlap = len(ordered[0]) - 1
    count = 0
    for start in range(0, size, _CHUNK):
        if stop():
            return count
        block = bytearray(os.pread(fd, _CHUNK + overlap, start))
        for value in ordered:
            at = block.find(value)
            while at >= 0:
                stars = b"*" * len(value)
                os.pwrite(fd, stars, start + at)
                block[at : at + len(value)] = stars
                count += 1
                at = block.find(value, at + len(value))
    return count
