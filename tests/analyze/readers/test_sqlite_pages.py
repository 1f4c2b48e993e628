"""Columns from a SQLite file's pages against SQLite itself, on tables of any shape and on damaged files."""

from __future__ import annotations

import random
import sqlite3
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("hypothesis")
pytest.importorskip("numpy")
import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.analyze.shared import real

from rlprof_ops.analyze.columns import NO_VALUE
from rlprof_ops.analyze.readers.nsys_tables import Export
from rlprof_ops.analyze.readers.sqlite import pages

EDGES = [
    0,
    1,
    -1,
    2,
    127,
    128,
    -128,
    -129,
    32767,
    -32769,
    1 << 23,
    -(1 << 23) - 1,
    1 << 31,
    1 << 47,
    -(1 << 47) - 1,
]
NUMBERS = st.one_of(
    st.none(), st.integers(0, 1), st.sampled_from(EDGES), st.integers(-(1 << 62), (1 << 62) - 1)
)
ROWS = st.lists(
    st.tuples(NUMBERS, NUMBERS, st.one_of(st.none(), st.text(max_size=200)), NUMBERS), max_size=60
)
WANTED = ("a", "d", "rowid", "b", "absent")


def made(
    path: Path, rows: list[tuple[Any, ...]], page: int = 4096, key: str = "INTEGER", repeat: int = 1
) -> Path:
    path.unlink(missing_ok=True)
    with sqlite3.connect(path) as connection:
        connection.execute(f"pragma page_size = {page}")
        connection.execute(f"create table other (x {key} primary key, y text)")
        connection.execute("create table t (a INTEGER, b INTEGER, c TEXT, d INTEGER)")
        for _ in range(repeat):
            connection.executemany("insert into t values (?, ?, ?, ?)", rows)
            connection.executemany("insert into other(y) values (?)", [("z" * 300,)] * 5)
    connection.close()
    return path


def by_sqlite(path: Path, table: str = "t") -> dict[str, list[int]]:
    connection = sqlite3.connect(path)
    query = f"select coalesce(a, -1), coalesce(d, -1), rowid, coalesce(b, -1), -1 from {table} order by rowid"
    found = connection.execute(query).fetchall()
    connection.close()
    return {name: [row[i] for row in found] for i, name in enumerate(WANTED)}


def ours(path: Path) -> tuple[dict[str, list[int]], list[str]]:
    export = Export(path)
    columns = {name: values.tolist() for name, values in export.read("t", WANTED).items()}
    export.connection.close()
    return columns, export.damage


@settings(max_examples=60, deadline=None)
@given(ROWS, st.sampled_from([512, 1024, 4096, 65536]), st.integers(1, 12))
def test_columns_are_those_of_sqlite(
    tmp_path_factory: pytest.TempPathFactory, rows: list[tuple[Any, ...]], page: int, repeat: int
) -> None:
    path = made(tmp_path_factory.getbasetemp() / "t.sqlite", rows, page, repeat=repeat)
    assert ours(path) == (by_sqlite(path), [])


@pytest.mark.parametrize("page", [512, 4096])
def test_a_tree_of_several_levels_and_holes_is_read_without_sqlite(
    tmp_path: Path, page: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = random.Random(1)
    rows = [(i, rng.randrange(1 << 60), "x" * rng.randrange(40), rng.choice(EDGES)) for i in range(30_000)]
    path = made(tmp_path / "t.sqlite", rows, page)
    with sqlite3.connect(path) as connection:
        connection.execute("delete from t where rowid % 3 = 0 or rowid between 5000 and 9000")
    connection.close()
    monkeypatch.setattr(Export, "_by_sqlite", None)
    assert ours(path) == (by_sqlite(path), [])


@pytest.mark.parametrize("odd", ["x" * 9000, 1.5, "text where a number should be"])
def test_a_row_that_is_not_plain_is_left_to_sqlite_and_the_others_stay(tmp_path: Path, odd: Any) -> None:
    plain: list[tuple[Any, ...]] = [(i, 2 * i, "c", 3) for i in range(40_000)]
    in_text = isinstance(odd, str) and len(odd) > 1000
    rows = [*plain, (7, 8, odd, 9) if in_text else (7, 8, "c", odd), *plain]
    path = made(tmp_path / "t.sqlite", rows)
    columns, damage = ours(path)
    if in_text:
        assert (columns, damage) == (by_sqlite(path), [])
    else:
        assert len(columns["a"]) == len(rows) - 1 and damage


def test_a_table_without_rowids_one_with_a_key_and_one_with_more_columns_later(tmp_path: Path) -> None:
    path = tmp_path / "t.sqlite"
    for text in (
        "create table t (a INTEGER PRIMARY KEY, b INTEGER, c TEXT, d INTEGER)",
        "create table t (a INTEGER, b INTEGER, c TEXT, d INTEGER, primary key (a, b))",
    ):
        path.unlink(missing_ok=True)
        with sqlite3.connect(path) as connection:
            connection.execute(text)
            connection.executemany(
                "insert into t values (?, ?, ?, ?)", [(5 * i, i, "c", -i) for i in range(3000)]
            )
            connection.execute("alter table t add column late INTEGER")
        connection.close()
        assert ours(path) == (by_sqlite(path), [])
        export = Export(path)
        assert export.read("t", ("late", "a"))["late"].tolist() == [NO_VALUE] * 3000
        export.connection.close()


def test_a_real_export_is_read_from_its_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    export = Export(real("h100_2gpu_part.sqlite"))
    tables = [t for t in sorted(export.tables) if t.startswith("CUPTI_ACTIVITY_KIND_") or t == "NVTX_EVENTS"]
    wanted = ("start", "end", "globalTid", "globalPid", "correlationId", "deviceId", "streamId", "textId")
    compared = 0
    for table in tables:
        told = [
            np.concatenate(c)
            for c in zip(*(b.values() for b in export._by_sqlite(table, wanted)), strict=True)
        ]
        places = export._places(table, wanted)
        if not told or places is None:
            continue
        asked = sorted(set(places[1].values()))
        read = list(pages.batches(export.path, places[0], asked, NO_VALUE))
        columns = dict(
            zip(asked, map(np.concatenate, zip(*(b.columns for b in read), strict=True)), strict=True)
        )
        for name, values in zip(wanted, told, strict=True):
            if name in places[1]:
                assert np.array_equal(columns[places[1][name]], values), (table, name)
                compared += len(values)
    export.connection.close()
    assert compared > 10_000


@pytest.mark.parametrize("seed", range(60))
def test_a_damaged_file_raises_nothing_new(tmp_path: Path, seed: int) -> None:
    """Bytes changed anywhere behind the first page: what is read is right up to there, or SQLite is asked."""
    rng = random.Random(seed)
    path = made(tmp_path / "t.sqlite", [(i, i, "c" * (i % 50), i) for i in range(4000)])
    data = bytearray(path.read_bytes())
    for _ in range(rng.choice([1, 5, 200])):
        data[rng.randrange(4096, len(data))] = rng.randrange(256)
    if seed % 4 == 0:
        del data[rng.randrange(4096, len(data)) :]
    path.write_bytes(bytes(data))
    try:
        export = Export(path)
    except sqlite3.DatabaseError:  # a file cut short, which is what the report then says
        return
    columns = export.read("t", WANTED)
    export.connection.close()
    assert len({len(values) for values in columns.values()}) == 1
