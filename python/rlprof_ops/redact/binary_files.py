"""Takes secrets out of binary reports before they leave a node.

A profiler may write the environment of processes into its report, partly inside LZ4 blocks. So the exact
values are looked for, and overwritten in a copy with as many asterisks: lengths and offsets stay, and a
literal of LZ4 stays a literal. A value whose beginning LZ4 found elsewhere is not seen.
"""

from __future__ import annotations

import os
import re
import string
from collections.abc import Callable, Collection, Iterable, Iterator

from rlprof_ops.redact.known import secret_values

_CHUNK = 8 << 20
_SHORTEST = 8  # bytes; a shorter value can stand in a report by chance
_WORD = 4
_FEW = 4  # values that are found fastest one by one


def maskable(values: Iterable[str]) -> frozenset[bytes]:
    """Those values that may be overwritten in a binary file: long, and no word that stands there anyway.

    A masked `NVIDIA` makes a report unreadable.
    """
    return frozenset(os.fsencode(value) for value in values if _is_rare(value))


def _is_rare(value: str) -> bool:
    if len(os.fsencode(value)) < _SHORTEST or value.startswith(("/", "./", "~")):
        return False
    if re.fullmatch(r"[A-Za-z]+|[0-9.]+|[A-Za-z]+([_-][A-Za-z]+)*", value):  # a word, a number, words
        return len(value) >= 20
    return len(set(value) & set(string.printable)) >= 5


def running() -> frozenset[str]:
    """The numbers of all processes."""
    return frozenset(filter(str.isdigit, os.listdir("/proc")))


def secrets_of_processes(pids: Collection[str] | None = None) -> frozenset[str]:
    """Secrets of every process whose environment this one may read, as a profiler does; or of `pids`."""
    found: set[str] = set()
    for pid in running() if pids is None else pids:
        try:
            with open(f"/proc/{pid}/environ", "rb") as stream:
                entries = stream.read().split(b"\0")
        except OSError:
            continue
        env: dict[str, str] = {}
        for entry in entries:
            name, _, value = entry.partition(b"=")
            # A process that wrote its title over its environment leaves anything there: names must look like
            # names.
            if value and name.replace(b"_", b"").isalnum():
                env[os.fsdecode(name)] = os.fsdecode(value)
        found |= secret_values(env)
    return frozenset(found)


def places(
    fd: int, values: Collection[bytes], stop: Callable[[], bool] = lambda: False
) -> list[tuple[int, int]]:
    """Where `values` stand in a file: (offset, length). Ends early when `stop()` turns true."""
    if not values:
        return []
    size, overlap = os.fstat(fd).st_size, max(map(len, values)) - 1
    find = _finder(values)
    found: set[tuple[int, int]] = set()
    for start in range(0, size, _CHUNK):
        if stop():
            break
        block = os.pread(fd, _CHUNK + overlap, start)
        found.update((start + at, length) for at, length in find(block))
    return sorted(found)


def mask(fd: int, found: Iterable[tuple[int, int]]) -> None:
    """Overwrite what stands there."""
    for at, length in found:
        os.pwrite(fd, b"*" * length, at)


def _finder(values: Collection[bytes]) -> Callable[[bytes], Iterator[tuple[int, int]]]:
    if len(values) > _FEW:
        try:
            return _WordFinder(values).find
        except ImportError:  # a container without numpy
            pass
    return lambda block: _one_by_one(block, values)


def _one_by_one(block: bytes, values: Collection[bytes]) -> Iterator[tuple[int, int]]:
    for value in values:
        at = block.find(value)
        while at >= 0:
            yield at, len(value)
            at = block.find(value, at + 1)


class _WordFinder:
    """All values in one pass: a value of seven bytes or more holds a whole aligned word of four, at one of
    four phases. So every fourth byte pair is looked up in a table, whatever the number of values.
    """

    def __init__(self, values: Collection[bytes]) -> None:
        import numpy

        self._numpy = numpy
        self._words: dict[int, list[tuple[bytes, int]]] = {}
        self._first = numpy.zeros(1 << 16, dtype=bool)
        for value in values:
            for phase in range(_WORD):
                word = int.from_bytes(value[phase : phase + _WORD], "little")
                self._words.setdefault(word, []).append((value, phase))
                self._first[word & 0xFFFF] = True
        self._known = numpy.array(sorted(self._words), dtype="<u4")

    def find(self, block: bytes) -> Iterator[tuple[int, int]]:
        numpy = self._numpy
        count = len(block) // _WORD
        words = numpy.frombuffer(block, dtype="<u4", count=count)
        low = numpy.frombuffer(block, dtype="<u2", count=2 * count)[::2]
        candidates = numpy.flatnonzero(self._first[low])
        candidates = candidates[numpy.isin(words[candidates], self._known)]
        for index in candidates.tolist():
            for value, phase in self._words[int(words[index])]:
                at = index * _WORD - phase
                if at >= 0 and block.startswith(value, at):
                    yield at, len(value)
