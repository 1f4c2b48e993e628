"""Keeps long columns in unnamed files while a report is read, so that memory does not grow with the
report.
"""

from __future__ import annotations

import mmap
import tempfile
from collections.abc import Mapping
from typing import BinaryIO, TypeVar

import numpy as np
import numpy.typing as npt

from rlprof_ops.analyze.columns import DTYPES, Column, Flags, Ints, Part, Rows, Spans, join

BLOCK_ROWS = 1 << 17  # rows of a table that are held in memory; shorter tables never touch the disk
T = TypeVar("T", bound=Rows)


class Parts:
    """The pieces of one table as they are read; what exceeds a block goes to files without a name, a column
    each.

    The files lie in `TMPDIR` and are gone with the process, however it ends. Where they cannot be written (a
    full disk) the rest is held in memory instead.
    """

    def __init__(self) -> None:
        self._pending: list[Part] = []
        self._pending_rows = 0
        self._files: dict[str, BinaryIO] = {}
        self._spilled_rows = 0
        self._held: list[Part] = []  # blocks that no file would take

    def append(self, part: Mapping[str, Column]) -> None:
        self._pending.append(dict(part))
        self._pending_rows += len(next(iter(part.values())))
        if self._pending_rows >= BLOCK_ROWS:
            self._close_block()

    def _close_block(self) -> None:
        pending, rows = self._pending, self._pending_rows
        self._pending, self._pending_rows = [], 0
        block = {
            c: np.concatenate([part[c] for part in pending]).astype(DTYPES[c], copy=False) for c in pending[0]
        }
        if not self._held and self._written(block):
            self._spilled_rows += rows
        else:
            self._held.append(block)

    def _written(self, block: Part) -> bool:
        try:
            for column, values in block.items():
                if column not in self._files:
                    self._files[column] = tempfile.TemporaryFile(prefix="rlprof-", buffering=0)  # noqa: SIM115 - closed when mapped
                left = values.data.cast("B")
                while len(left):
                    left = left[self._files[column].write(left) :]
        except OSError:
            return False  # a column that took it and one that did not are told apart by the count of rows
        return True

    def table(self, kind: type[T]) -> T:
        """The whole table; the pieces are given away."""
        if self._spilled_rows and self._pending and not self._held:
            self._close_block()
        spilled = [self._mapped()] if self._spilled_rows else []
        rest, self._held, self._pending, self._pending_rows = [*self._held, *self._pending], [], [], 0
        if spilled and not rest:
            return kind(**spilled[0])
        return join(kind, [*spilled, *rest])

    def _mapped(self) -> Part:
        columns = {}
        for column, file in self._files.items():
            dtype = np.dtype(DTYPES[column])
            mapped = mmap.mmap(file.fileno(), self._spilled_rows * dtype.itemsize)
            columns[column] = np.frombuffer(mapped, dtype)
            file.close()
        self._files, self._spilled_rows = {}, 0
        return columns


def in_order(table: T) -> T:
    """The table itself, its rows put in order of their start, a column at a time."""
    start: npt.NDArray[np.int64] = table.start  # type: ignore[attr-defined]
    if len(start) < 2 or bool((start[1:] >= start[:-1]).all()):
        return table
    order = np.argsort(start, kind="stable")
    for column in table.__struct_fields__:
        values = getattr(table, column)
        values[:] = values[order]
        release(table)
    return table


def rows_named(table: Spans, chosen: Flags) -> Ints:
    """(k,) rows whose name passes `chosen`, a mask of the dictionary; memory is given back on the way."""
    if not chosen.any():
        return np.empty(0, np.int64)
    found = []
    for first in range(0, len(table), BLOCK_ROWS):
        found.append(first + np.flatnonzero(chosen[table.name[first : first + BLOCK_ROWS]]))
        release(table)
    return np.concatenate(found) if found else np.empty(0, np.int64)


def release(*tables: Rows) -> None:
    """Takes the pages of spilled columns out of this process's memory; what is read again comes back from
    the file.
    """
    for table in tables:
        if len(table) < BLOCK_ROWS:  # none of it is in a file
            continue
        for column in table.__struct_fields__:
            owner: object = getattr(table, column)
            while isinstance(owner, np.ndarray):
                owner = owner.base
            if isinstance(owner, memoryview):
                owner = owner.obj
            if isinstance(owner, mmap.mmap) and hasattr(mmap, "MADV_DONTNEED"):
                owner.madvise(mmap.MADV_DONTNEED)
