"""Whole columns of the tables of an nsys export, some rows at a time, whatever tables and columns that
nsys wrote.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from rlprof_ops.analyze.columns import NO_VALUE, Ints
from rlprof_ops.analyze.readers.sqlite import pages

_BIG = 1 << 62
_BATCH_ROWS = 125_000  # rows joined to one text: 2 MB a column
_MOST_BATCHES = 10_000  # 1.25e9 rows
_OFTEN_ONE_VALUE = ("deviceId", "globalTid", "globalPid", "nameId", "memoryOperationType", "copyKind")
_THREADS = min(4, os.cpu_count() or 1)
Columns = dict[str, Ints]


class Export:
    """One open export: which tables and columns it has, and whole columns of them."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.uri = f"file:{_quoted(path)}?mode=ro&immutable=1"
        self.connection = sqlite3.connect(self.uri, uri=True)
        self.connection.text_factory = lambda raw: raw.decode("utf-8", "replace")
        self.tables = {
            row[0] for row in self.connection.execute("select name from sqlite_master where type='table'")
        }
        self.damage: list[str] = []

    def columns_of(self, table: str) -> set[str]:
        return {row[1] for row in self.connection.execute(f'pragma table_info("{table}")')}

    def read(self, table: str, columns: Sequence[str]) -> Columns:
        """int64 columns of a table, `NO_VALUE` for NULL and for columns this nsys did not write."""
        batches = list(self.batches(table, columns))
        return {c: np.concatenate([np.empty(0, np.int64), *(batch[c] for batch in batches)]) for c in columns}

    def batches(self, table: str, columns: Sequence[str]) -> Iterator[Columns]:
        """The same, some rows at a time in the order of the table.

        The rows are taken from the file's pages as long as they are plain; SQLite reads what is left.
        """
        if table not in self.tables:
            return
        places = self._places(table, columns)
        last: int | None = None
        if places is not None:
            root, place = places
            asked = sorted(set(place.values()))
            try:
                for batch in pages.batches(self.path, root, asked, NO_VALUE):
                    found = dict(zip(asked, batch.columns, strict=True))
                    count = len(batch.columns[0])
                    last = batch.last_rowid
                    yield {c: found[place[c]] if c in place else np.full(count, NO_VALUE) for c in columns}
                return
            except (pages.NotPlain, OSError, IndexError):
                pass
        yield from self._by_sqlite(table, columns, last)

    def _places(self, table: str, columns: Sequence[str]) -> tuple[int, dict[str, int]] | None:
        """The first page of a table, and the place of each column in its rows (-1: the rowid); None where it
        is no usual table, or has none of the columns.
        """
        try:
            query = "select rootpage, sql from sqlite_master where type = 'table' and name = ?"
            root, sql = self.connection.execute(query, (table,)).fetchone()
            described = self.connection.execute(f'pragma table_xinfo("{table}")').fetchall()
        except (sqlite3.Error, TypeError):
            return None
        usual = isinstance(root, int) and isinstance(sql, str) and not any(row[6] for row in described)
        if not usual or root < 1 or "without" in sql.lower() or "default" in sql.lower():
            return None
        keys = [row for row in described if row[5]]
        alias = len(keys) == 1 and str(keys[0][2]).upper() == "INTEGER"
        place = {row[1]: -1 if alias and row[5] else row[0] for row in described if row[1] in columns}
        if "rowid" in columns and "rowid" not in place:
            place["rowid"] = -1
        return (root, place) if place else None

    def _by_sqlite(self, table: str, columns: Sequence[str], after: int | None = None) -> Iterator[Columns]:
        """The rows after a rowid by SQL.

        Columns come as one text each, joined by SQLite and split by NumPy: twice as fast as a Python tuple
        for each row. SQLite lets go of the interpreter while it joins, so a few threads share the rows.
        """
        present = self.columns_of(table) | {"rowid"}
        values = [f'coalesce("{c}", {NO_VALUE})' if c in present else str(NO_VALUE) for c in columns]
        try:
            low, high = self.connection.execute(f'select min(rowid), max(rowid) from "{table}"').fetchone()
        except sqlite3.Error as error:  # no way to go by rowid
            rows = self._read_slowly(
                f'select {", ".join(values)} from "{table}"', len(columns), f"{table}: {error}"
            )
            yield dict(zip(columns, np.ascontiguousarray(rows.T), strict=True))
            return
        if low is None or (after is not None and high <= after):
            return
        low = low if after is None else max(low, after + 1)
        part = f'from "{table}" where rowid between ? and ?'

        def batch(first: int) -> list[Ints] | Exception:
            try:
                with contextlib.closing(sqlite3.connect(self.uri, uri=True)) as connection:
                    connection.text_factory = bytes
                    return _batch(connection, part, values, (first, first + _BATCH_ROWS - 1))
            except (sqlite3.Error, ValueError, TypeError, OverflowError) as error:
                return error

        starts = range(low, high + 1, _BATCH_ROWS)
        if len(starts) > _MOST_BATCHES:  # rowids far apart: of a damaged file, for nsys counts them up
            rows = self._read_slowly(
                f'select {", ".join(values)} from "{table}"', len(columns), f"{table}: rowids up to {high}"
            )
            yield dict(zip(columns, np.ascontiguousarray(rows.T), strict=True))
            return
        with ThreadPoolExecutor(_THREADS) as pool:
            ahead: deque[tuple[int, Future[list[Ints] | Exception]]] = deque()
            for first in (*starts, *[None] * _THREADS):
                if first is not None:
                    ahead.append((first, pool.submit(batch, first)))
                if len(ahead) > _THREADS or (first is None and ahead):
                    began, future = ahead.popleft()
                    found = future.result()
                    if isinstance(found, Exception):
                        bounds = f"where rowid between {began} and {began + _BATCH_ROWS - 1}"
                        query = f'select {", ".join(values)} from "{table}" {bounds}'
                        found = list(
                            np.ascontiguousarray(
                                self._read_slowly(query, len(columns), f"{table}: {found}").T
                            )
                        )
                    yield dict(zip(columns, found, strict=True))

    def _read_slowly(self, query: str, width: int, why: str) -> Ints:
        """Row by row, keeping what is whole: the page of a damaged file, or a value of the wrong type,
        costs only itself.
        """
        if why not in self.damage:
            self.damage.append(why)
        good: list[tuple[int, ...]] = []
        try:
            for row in self.connection.execute(query):
                if all(isinstance(value, int) and -_BIG <= value < _BIG for value in row):
                    good.append(row)
        except sqlite3.Error:
            pass
        return np.array(good, np.int64).reshape(-1, width)

    def pairs(self, table: str, key: str, value: str) -> dict[Any, Any]:
        if table not in self.tables or not {key, value} <= self.columns_of(table):
            return {}
        try:
            return dict(self.connection.execute(f'select "{key}", "{value}" from "{table}"'))
        except sqlite3.Error as error:
            self.damage.append(f"table {table}: {error}")
            return {}


def _batch(connection: sqlite3.Connection, part: str, values: list[str], rows: tuple[int, int]) -> list[Ints]:
    """The columns of some rows. One that holds a single value (device, thread) is not spelt out row by
    row.
    """
    asked = [
        i for i, value in enumerate(values) if any(f'"{column}"' in value for column in _OFTEN_ONE_VALUE)
    ]
    ends = "".join(f", min({values[i]}), max({values[i]})" for i in asked)
    count, *bounds = connection.execute(f"select count(*){ends} {part}", rows).fetchone()
    pairs = zip(asked, bounds[::2], bounds[1::2], strict=True)
    same = {i: low for i, low, high in pairs if count and low == high}
    varied = [i for i in range(len(values)) if i not in same]
    joined = ", ".join(f"group_concat({values[i]}, ' ')" for i in varied)
    texts = connection.execute(f"select {joined} {part}", rows).fetchone() if varied else ()
    columns = {
        i: np.fromstring(text or b"", np.int64, sep=" ") for i, text in zip(varied, texts, strict=True)
    }
    if any(not isinstance(value, int) for value in same.values()) or any(
        len(c) != count for c in columns.values()
    ):
        raise ValueError("a value is no whole number")
    columns |= {i: np.full(count, value, np.int64) for i, value in same.items()}
    return [columns[i] for i in range(len(values))]


def _quoted(path: Path) -> str:
    from urllib.parse import quote

    return quote(str(path.absolute()))
