"""Whole-number columns of a SQLite table straight from the pages of its file, thousands of rows at once.

SQLite hands out rows one by one, or as text; here the same bytes become columns. The format is that of
https://www.sqlite.org/fileformat2.html. Whatever is not plain (rows that reach over several pages, text or
fractions where a number should be, a page that cannot be right) raises `NotPlain`: SQLite reads it then.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np
import numpy.typing as npt

from rlprof_ops.analyze.columns import Ints

Bytes = npt.NDArray[np.uint8]
_INTERIOR, _LEAF = 0x05, 0x0D
_BATCH_BYTES = 2 << 20
_MOST_LEVELS = 12
_MOST_BETWEEN = 4  # pages of others among a batch's, a page: so far all are read at once
# bytes in a row of a value by its serial type; from 12 on, of texts and blobs, it is (type - 12) // 2
_SIZE = np.array([0, 1, 2, 3, 4, 6, 8, 8, 0, 0, 0, 0, *(((t - 12) // 2) for t in range(12, 128))], np.int64)
_NULL, _FLOAT, _ZERO, _ONE = 0, 7, 8, 9
# how far to the right the eight bytes that begin with the value are moved
_SHIFT = np.array([0, 56, 48, 40, 32, 16, 0], np.int64)


class NotPlain(ValueError):
    """The table, or this part of it, is for SQLite itself to read."""


@dataclass(frozen=True)
class Batch:
    """Some rows in order: their columns as they were asked for, and the rowids that they go from and to."""

    columns: list[Ints]
    first_rowid: int
    last_rowid: int


def batches(path: Path, root: int, wanted: Sequence[int], null: int) -> Iterator[Batch]:
    """The rows of the table whose tree begins at page `root`.

    Parameters
    ----------
    wanted: places of columns in the table, -1 for the rowid; `null`: what stands for NULL

    Raises `NotPlain` where a row is not plain; what was given before is right.
    """
    with open(path, "rb") as file:
        yield from _batches(_File(file), root, wanted, null)


class _File:
    """The pages of a file, counted from 0. They are read and not mapped: a map counts as memory in use."""

    def __init__(self, file: BinaryIO) -> None:
        header = file.read(100)
        size = int.from_bytes(header[16:18], "big")
        self.size = 65536 if size == 1 else size
        if (
            header[:16] != b"SQLite format 3\0"
            or self.size < 512
            or self.size & (self.size - 1)
            or header[20]
        ):
            raise NotPlain("no usual SQLite header")
        self.file = file
        self.count = os.fstat(file.fileno()).st_size // self.size

    def pages(self, numbers: Ints) -> npt.NDArray[np.uint8]:
        """(n, page size) bytes of n pages."""
        low, high = int(numbers.min()), int(numbers.max())
        if low < 0 or high >= self.count:
            raise NotPlain("a page number beyond the file")
        if high - low < _MOST_BETWEEN * len(numbers):
            span = self._read(low, high + 1 - low)
            return span if len(span) == len(numbers) and _counts_up(numbers) else span[numbers - low]
        return np.concatenate([self._read(number, 1) for number in numbers.tolist()])

    def _read(self, first: int, count: int) -> npt.NDArray[np.uint8]:
        data = os.pread(self.file.fileno(), count * self.size, first * self.size)
        if len(data) != count * self.size:
            raise NotPlain("the file ended early")
        return np.frombuffer(data, np.uint8).reshape(-1, self.size)


def _counts_up(numbers: Ints) -> bool:
    return bool((np.diff(numbers) == 1).all())


def _batches(file: _File, root: int, wanted: Sequence[int], null: int) -> Iterator[Batch]:
    leaves = _leaves(file, root)
    each = max(1, _BATCH_BYTES // file.size)
    last = None
    for first in range(0, len(leaves), each):
        part = leaves[first : first + each]
        batch = _rows(file.pages(part), part, wanted, null)
        if len(batch.columns) and len(batch.columns[0]):
            if last is not None and batch.first_rowid <= last:
                raise NotPlain("rows out of order")
            last = batch.last_rowid
            yield batch


def _leaves(file: _File, root: int) -> Ints:
    """The numbers of a tree's leaf pages in the order of their rows."""
    level = np.array([root - 1], np.int64)
    for _ in range(_MOST_LEVELS):
        kind = int(file.pages(level[:1])[0, 100 if int(level[0]) == 0 else 0])
        if kind == _LEAF:
            return level
        if kind != _INTERIOR:
            raise NotPlain("no tree of a usual table")
        level = np.concatenate(
            [_children(file.pages(level[i : i + 1])[0], level[i]) for i in range(len(level))]
        )
        if len(level) > file.count:
            raise NotPlain("a tree with more pages than the file")
    raise NotPlain("a tree too deep")


def _children(page: Bytes, number: int) -> Ints:
    at = 100 if number == 0 else 0
    if page[at] != _INTERIOR:
        raise NotPlain("no tree of a usual table")
    cells = int(page[at + 3]) << 8 | int(page[at + 4])
    pointers = at + 12 + 2 * cells
    if pointers > len(page):
        raise NotPlain("more cells than a page holds")
    places = page[at + 12 : pointers].reshape(-1, 2).astype(np.int64)
    begins = places[:, 0] << 8 | places[:, 1]
    if len(begins) and int(begins.max()) + 4 > len(page):
        raise NotPlain("a cell beyond its page")
    numbers = page[np.append(begins, at + 8)[:, None] + np.arange(4)].astype(np.int64)
    return (numbers[:, 0] << 24 | numbers[:, 1] << 16 | numbers[:, 2] << 8 | numbers[:, 3]) - 1


def _rows(pages: npt.NDArray[np.uint8], numbers: Ints, wanted: Sequence[int], null: int) -> Batch:
    count, size = pages.shape
    data = np.concatenate((pages.reshape(-1), np.zeros(16, np.uint8)))
    base = np.arange(count, dtype=np.int64) * size
    at = base + np.where(numbers == 0, 100, 0)
    if bool((data[at] != _LEAF).any()):
        raise NotPlain("a tree with leaves at several depths")
    cells = data[at + 3].astype(np.int64) << 8 | data[at + 4]
    if bool((at - base + 8 + 2 * cells > size).any()):
        raise NotPlain("more cells than a page holds")
    total = int(cells.sum())
    if total == 0:
        return Batch([np.empty(0, np.int64) for _ in wanted], 0, 0)
    page = np.repeat(np.arange(count), cells)
    within = np.arange(total) - np.repeat(np.cumsum(cells) - cells, cells)
    pointer = at[page] + 8 + 2 * within
    place = base[page] + (data[pointer].astype(np.int64) << 8 | data[pointer + 1])
    end_of_page = base[page] + size
    if bool((place >= end_of_page).any()):
        raise NotPlain("a cell beyond its page")
    payload, place = _varint(data, place)
    rowid, place = _varint(data, place)
    if bool((np.diff(rowid) <= 0).any()):
        raise NotPlain("rows out of order")
    if bool((payload > size - 35).any()) or bool((place + payload > end_of_page).any()):
        raise NotPlain("a row that reaches over several pages")
    header, types = _varint(data, place)
    values = _values(data, types, place + header, place + payload, wanted, null)
    return Batch(
        [rowid if column < 0 else values[column] for column in wanted], int(rowid[0]), int(rowid[-1])
    )


def _values(
    data: Bytes, types: Ints, body: Ints, end: Ints, wanted: Sequence[int], null: int
) -> dict[int, Ints]:
    """The wanted columns of rows whose serial types begin at `types` and whose values begin at `body`."""
    # eight bytes from any place on: a view whose elements overlap
    words: npt.NDArray[np.int64] = np.ndarray((len(data) - 7,), ">i8", data, strides=(1,))
    header_end, at = body, types
    found: dict[int, Ints] = {}
    for column in range(max((c for c in wanted if c >= 0), default=-1) + 1):
        if bool((at >= header_end).any()):
            raise NotPlain("a row with fewer values than the table has columns")
        kind = data.take(at)
        if bool((kind > 127).any()):
            wide, at = _varint(data, at)
            length = np.where(wide < 12, _SIZE[np.minimum(wide, 11)], (wide - 12) // 2)
            plain = bool((wide < 10).all())
            kind = np.minimum(wide, 12).astype(np.uint8)
        else:
            at = at + 1
            length = _SIZE.take(kind)
            plain = int(kind.max(initial=0)) < 10
        if column in wanted:
            if not plain or bool((kind == _FLOAT).any()):
                raise NotPlain("a value that is no whole number")
            if bool((body + length > end).any()):
                raise NotPlain("a value beyond its row")
            found[column] = _numbers(words, body, kind, null)
        body = body + length
    return found


def _numbers(words: npt.NDArray[np.int64], place: Ints, kind: Bytes, null: int) -> Ints:
    first = int(kind[0])
    if bool((kind == first).all()):
        if first in (_NULL, _ZERO, _ONE):
            return np.full(len(kind), null if first == _NULL else first - _ZERO, np.int64)
        same: Ints = words[place].astype(np.int64)
        if first < 6:
            same >>= int(_SHIFT[first])
        return same
    values: Ints = words[np.minimum(place, len(words) - 1)].astype(np.int64)
    values >>= _SHIFT.take(np.minimum(kind, 6))
    values[kind == _NULL] = null
    values[kind == _ZERO] = 0
    values[kind == _ONE] = 1
    return values


def _varint(data: Bytes, place: Ints) -> tuple[Ints, Ints]:
    """Numbers of seven bits a byte, and the places after them. Raises `NotPlain` beyond eight bytes."""
    byte = data.take(place)
    value = (byte & 0x7F).astype(np.int64)
    after = place + 1
    open_rows = np.flatnonzero(byte > 127)
    for _ in range(7):
        if len(open_rows) == 0:
            return value, after
        byte = data[np.minimum(after[open_rows], len(data) - 1)]
        value[open_rows] = value[open_rows] << 7 | (byte & 0x7F)
        after[open_rows] += 1
        open_rows = open_rows[byte > 127]
    if len(open_rows):
        raise NotPlain("a number of nine bytes where none should be")
    return value, after
