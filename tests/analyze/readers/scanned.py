"""What the tests of the scanner compare: a batch as the scanner reads it, as the reader in Python does, and
as plain json with exact decimals, which shares no code with either.
"""

from __future__ import annotations

import json
from collections import Counter
from decimal import ROUND_HALF_UP, Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec import Struct

from rlprof_ops.analyze.columns import Collective, Trace
from rlprof_ops.analyze.operator_flops import COUNTED
from rlprof_ops.analyze.readers import UnreadableReport, chrome_events, torch_trace
from rlprof_ops.analyze.readers.scan import batches
from rlprof_ops.analyze.readers.torch_columns import Columns

Tables = dict[str, Any]
GPU = {"kernel": 0, "gpu_memcpy": 1, "gpu_memset": 2}
TOLD = ["dtype", "In msg nelems", "Out msg nelems", "Group size", "Process Group Name", "Seq"]
TOLD += ["Process Group Description"]
LAUNCHES = ("cuda_runtime", "cuda_driver", "hip_runtime")


def tables(columns: Columns) -> Tables:
    """Everything that `Columns` holds, codes as they are."""
    found: Tables = {
        "names": columns.names.values(), "tracks": columns.tracks.values(),
        "collectives": columns.collectives.values(), "events": columns.events,
        "shapes": columns.shapes.values(), "damaged": columns.damaged,
        "pid": columns.pid(), "span": columns.span,
    }  # fmt: skip
    for table in ("ranges", "ops", "shaped", "launches", "gpu", "memory"):
        found[table] = [
            {column: values.tolist() for column, values in part.items()}
            for part in getattr(columns, table)._pending
            if len(next(iter(part.values())))
        ]
    return found


def by_scanner(*texts: bytes) -> Tables | None:
    """The columns of batches of one file; None where the scanner refuses one of them."""
    scanner, columns = batches.new_scanner(), Columns()
    assert scanner is not None
    for text in texts:
        scanned = scanner.scan(text, len(text))
        if scanned is None:
            return None
        columns.add_scanned(scanned)
    return tables(columns)


def by_python(*texts: bytes) -> Tables | None:
    """The same from the reader in Python; None where it finds that a text is no list of whole events."""
    columns = Columns()
    for text in texts:
        try:
            columns.add(chrome_events._EVENTS[0].decode(b"[" + text + b"]"))
        except chrome_events.DAMAGE:
            return None
    return tables(columns)


def nanoseconds(microseconds: Decimal) -> int:
    return int((microseconds * 1000).to_integral_value(ROUND_HALF_UP))


def by_json(text: bytes) -> Counter[tuple[Any, ...]] | None:
    """Every row that the columns of a sound batch should have, what codes stand for in their place; None
    where a collective is told in no way that is known.
    """
    rows: Counter[tuple[Any, ...]] = Counter()
    for event in json.loads(b"[" + text + b"]", parse_float=Decimal, parse_int=Decimal):
        category = event.get("cat")
        args = event.get("args") or {}
        if (category, event.get("name")) == ("cpu_instant_event", "[memory]") and "Total Allocated" in args:
            host = args.get("Device Type") == 0
            device = -1 if host else args.get("Device Id", -1)
            device = device if -1 <= device < 1 << 31 else -1
            told = args["Total Allocated"], args.get("Total Reserved", -1)
            rows[("memory", nanoseconds(event["ts"]), device, *told)] += 1
        if category not in (*GPU, *LAUNCHES, "cpu_op", "user_annotation"):
            continue
        span = (event["name"], nanoseconds(event["ts"]), max(nanoseconds(event["dur"]), 0))
        args = event.get("args", {}) if category != "cpu_op" and category != "user_annotation" else {}
        track = (event.get("pid"), event.get("tid"))
        said = event.get("args") or {}
        if category == "cpu_op" and span[0] in COUNTED and said.get("Input Dims") is not None:
            shape = [said.get(key) for key in ("Input Dims", "Input type", "Concrete Inputs")]
            rows[("shaped", *span, track, repr(shape))] += 1
        if category not in GPU:
            rows[(category in LAUNCHES, *span, track, args.get("correlation", -1))] += 1
            continue
        place = [args.get("device", event.get("pid")), args.get("stream", event.get("tid"))]
        size = -1 if category == "kernel" else args.get("bytes", -1)
        place = [code if -1 <= code < 1 << 31 else -1 for code in place]
        op = args.get("Collective name")
        if not isinstance(op, (str, type(None))) or any(
            isinstance(args.get(key), (list, dict)) for key in TOLD
        ):
            return None
        rows[(category, *span, *place, args.get("correlation", -1), size, op)] += 1
    return rows


def rows_of(found: Tables) -> Counter[tuple[Any, ...]]:
    """The rows of columns in the form of `by_json`."""
    rows: Counter[tuple[Any, ...]] = Counter()
    names, tracks, collectives = found["names"], found["tracks"], found["collectives"]
    categories = {code: category for category, code in GPU.items()}
    for table in ("ranges", "ops", "launches"):
        for part in found[table]:
            told = part.get("correlation", [-1] * len(part["start"]))
            for start, duration, name, track, correlation in zip(
                part["start"], part["duration"], part["name"], part["track"], told, strict=True
            ):
                rows[(table == "launches", names[name], start, duration, tracks[track], correlation)] += 1
    for part in found["shaped"]:
        for start, duration, name, track, shape in zip(
            *(part[key] for key in ("start", "duration", "name", "track", "shape")), strict=True
        ):
            texts = found["shapes"][shape]
            said = [json.loads(text, parse_float=Decimal, parse_int=Decimal) for text in texts]
            rows[("shaped", names[name], start, duration, tracks[track], repr(said))] += 1
    for part in found["memory"]:
        told = zip(
            *(part[key] for key in ("time", "device", "allocated_bytes", "reserved_bytes")), strict=True
        )
        rows.update(("memory", *row) for row in told)
    for part in found["gpu"]:
        columns = (
            "kind",
            "name",
            "start",
            "duration",
            "device",
            "stream",
            "correlation",
            "size_bytes",
            "collective",
        )
        for kind, name, *numbers, collective in zip(*(part[column] for column in columns), strict=True):
            op = None if collective < 0 else collectives[collective].op
            rows[(categories[kind], names[name], *numbers, op)] += 1
    return rows


def check_batch(text: bytes) -> bool:
    """Whether the scanner takes a batch; if so, its columns are those of the reader in Python and of json."""
    scanned = by_scanner(text)
    if scanned is None:
        return False
    assert scanned == by_python(text), text
    told = by_json(text)
    assert told is None or rows_of(scanned) == told, text
    return True


def both(path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Trace | str, Trace | str]:
    """A file read with the scanner and without: the trace, or what the reader says against the file."""
    outcomes: list[Trace | str] = []
    for wanted in ("1", "0"):
        monkeypatch.setenv("RLPROF_SCANNER", wanted)
        try:
            outcomes.append(torch_trace.read_torch(path))
        except UnreadableReport as error:
            outcomes.append(str(error))
    return outcomes[0], outcomes[1]


def assert_same(one: object, other: object) -> None:
    """Two traces are equal in every column and its type, every name, track, collective and count."""
    if isinstance(one, str) or isinstance(other, str) or isinstance(one, Collective):
        assert one == other
        return
    assert type(one) is type(other) and isinstance(one, Struct)
    for field in one.__struct_fields__:
        mine, theirs = getattr(one, field), getattr(other, field)
        if isinstance(mine, Struct):
            assert_same(mine, theirs)
        elif isinstance(mine, np.ndarray):
            assert mine.dtype == theirs.dtype and np.array_equal(mine, theirs), field
        else:
            assert mine == theirs, field
