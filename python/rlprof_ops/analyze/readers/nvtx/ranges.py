"""The ranges of an nsys export: the application's, and apart from them those that frameworks write."""

from __future__ import annotations

import contextlib
import re
import sqlite3
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from rlprof_ops.analyze.columns import NO_VALUE, Coder, Codes, Flags, Ints, Rows, Spans, Track, join
from rlprof_ops.analyze.readers.nsys_tables import Columns, Export
from rlprof_ops.analyze.readers.spill import Parts, in_order

# NVTX_EVENTS.eventType, from ENUM_NSYS_EVENT_TYPE of the export itself
_PUSH_POP, _START_END, _PUSH_POP_GRAPH, _START_END_GRAPH, _DOMAIN = 59, 60, 70, 71, 75
_RANGES = (_PUSH_POP, _START_END, _PUSH_POP_GRAPH, _START_END_GRAPH)
_TABLE = "NVTX_EVENTS"
_DOMAIN_OF_OURS = "rlprof"
# torch.autograd.profiler.emit_nvtx writes every operator as a range: "aten::view, op_id = 314290"
_OPERATOR = re.compile(r", (?:op_id|seq|sizes) = .*$", re.DOTALL)
# Such a text as far as its first mark, so that millions of operators have a few texts; others as they are.
_CUT = "coalesce(substr(text, 1, coalesce({})), text)".format(
    ", ".join(
        f"nullif(instr(text, '{mark}'), 0) + {len(mark) - 1}"
        for mark in (", seq = ", ", op_id = ", ", sizes = ")
    )
)
_PLAIN, _NCCL, _OURS = 0, 1, 2  # what kind of domain a range is of


class _Rows(Rows, frozen=True):
    """Ranges as they were read: `duration` is the end, -1 where the range was still open."""

    start: Ints
    duration: Ints
    name: Codes
    track: Codes
    kind: npt.NDArray[np.uint8]


def nvtx(
    export: Export, strings: dict[int, str], names: Coder[str], tracks: Coder[Track]
) -> tuple[Spans, Spans]:
    """Ranges of the application and, apart from them, the operators that emit_nvtx and NCCL write as ranges.

    Where our own domain is present only its ranges are the application's: a trainer may annotate as it likes
    beside us.
    """
    empty = join(Spans, [])
    if _TABLE not in export.tables:
        return empty, empty
    domains, labels, parts = _domains(export, strings), Coder[str](), Parts()
    inline: dict[bytes, int] = {}  # a text that stands in its row -> its code
    wanted = ("rowid", "start", "end", "eventType", "globalTid", "textId", "domainId")
    has_text = "text" in export.columns_of(_TABLE)
    for rows in export.batches(_TABLE, wanted):
        name = coded(rows["textId"], strings, labels, "")
        if has_text:
            _inline(export, rows["rowid"], name, labels, inline)
        blank = labels.one("")
        good = np.isin(rows["eventType"], _RANGES) & (rows["start"] != NO_VALUE) & (name != blank)
        parts.append({
            "start": rows["start"][good], "duration": rows["end"][good], "name": name[good],
            "track": threads(rows["globalTid"][good], tracks), "kind": _kinds(rows, domains)[good],
        })  # fmt: skip
    found = parts.table(_Rows)
    if len(found) == 0:
        return empty, empty
    last = max(int(found.start.max()), int(found.duration.max()))
    ended = np.where(found.duration == NO_VALUE, last, found.duration)  # still open when the window closed
    texts = labels.values()
    operators = np.array([_OPERATOR.search(t) is not None or t.startswith("nccl") for t in texts], np.bool_)
    is_op = operators[found.name] | (found.kind == _NCCL)
    if bool((found.kind == _OURS).any()):
        is_op |= found.kind != _OURS
    codes = np.full(len(texts), NO_VALUE, np.int32)
    used = np.flatnonzero(np.bincount(found.name, minlength=len(texts)))
    codes[used] = names.encode([_OPERATOR.sub("", texts[i]) for i in used.tolist()])
    return _spans(found, ended, codes, ~is_op), _spans(found, ended, codes, is_op)


def _spans(found: _Rows, ended: Ints, codes: Codes, chosen: Flags) -> Spans:
    start = found.start[chosen]
    length = np.maximum(ended[chosen] - start, 0)
    return in_order(Spans(start, length, codes[found.name[chosen]], found.track[chosen]))


def _domains(export: Export, strings: dict[int, str]) -> dict[tuple[int, int], str]:
    """(process, domain) -> name."""
    present = export.columns_of(_TABLE)
    columns = ("globalTid", "domainId", "text", "textId")
    chosen = ", ".join(f'"{c}"' if c in present else "null" for c in columns)
    found: dict[tuple[int, int], str] = {}
    try:
        query = f"select {chosen} from {_TABLE} where eventType = {_DOMAIN}"
        for thread, domain, text, text_id in export.connection.execute(query):
            process = thread >> 24 if isinstance(thread, int) else NO_VALUE
            found[process, domain] = text if isinstance(text, str) else strings.get(text_id, "")
    except sqlite3.Error as error:
        export.damage.append(f"table {_TABLE}: {error}")
    return found


def _kinds(rows: Columns, domains: dict[tuple[int, int], str]) -> npt.NDArray[np.uint8]:
    """(n,) what kind of domain each row is of."""
    kind = np.full(len(rows["start"]), _PLAIN, np.uint8)
    for (process, domain), name in domains.items():
        code = _OURS if name == _DOMAIN_OF_OURS else _NCCL if name == "NCCL" else _PLAIN
        if code != _PLAIN and isinstance(domain, int):
            kind[(rows["domainId"] == domain) & (rows["globalTid"] >> 24 == process)] = code
    return kind


def _inline(export: Export, rowids: Ints, name: Codes, labels: Coder[str], known: dict[bytes, int]) -> None:
    """Fills in the codes of names that stand in their rows."""
    if len(rowids) == 0:
        return
    for ids, texts in _texts(export, int(rowids.min()), int(rowids.max())):
        place = np.searchsorted(rowids, ids)
        inside = place < len(rowids)
        place = np.where(inside, place, 0)
        inside &= rowids[place] == ids
        new = (text for text in dict.fromkeys(texts) if text not in known)
        known.update((text, labels.one(text.decode("utf-8", "replace"))) for text in new)
        name[place[inside]] = np.fromiter(map(known.__getitem__, texts), np.int32, len(texts))[inside]


def _texts(export: Export, first: int, last: int) -> Iterator[tuple[Ints, tuple[bytes, ...]]]:
    query = f"select rowid, {_CUT} from {_TABLE} where rowid between ? and ? and typeof(text) = 'text'"
    try:
        with contextlib.closing(sqlite3.connect(export.uri, uri=True)) as connection:
            connection.text_factory = bytes
            cursor = connection.execute(query, (first, last))
            while batch := cursor.fetchmany(20_000):
                ids, texts = zip(*batch, strict=True)
                yield np.array(ids, np.int64), texts
    except sqlite3.Error as error:
        export.damage.append(f"table {_TABLE}: {error}")


def coded(ids: Ints, strings: dict[int, str], names: Coder[str], fallback: str) -> npt.NDArray[np.int32]:
    """Codes in our dictionary for nsys's string ids: one look-up per distinct id."""
    if len(ids) == 0:
        return np.empty(0, np.int32)
    low, high = int(ids.min()), int(ids.max())
    if low >= 0 and high < max(4 * len(ids), 1 << 20):  # ids are dense: a table is quicker than sorting them
        table = np.zeros(high + 1, np.int32)
        distinct = np.flatnonzero(np.bincount(ids))
        table[distinct] = [names.one(strings.get(int(i), fallback)) for i in distinct]
        return table[ids]
    distinct, inverse = np.unique(ids, return_inverse=True)
    codes = np.array([names.one(strings.get(int(i), fallback)) for i in distinct], np.int32)
    return codes[inverse]


def threads(ids: Ints, tracks: Coder[Track]) -> npt.NDArray[np.int32]:
    """nsys packs host, process and thread into one number: 24 bits of pid above 24 bits of tid."""
    if len(ids) and bool((ids == ids[0]).all()):
        distinct, inverse = ids[:1], np.zeros(len(ids), np.intp)
    else:
        distinct, inverse = np.unique(ids, return_inverse=True)
    codes = [
        NO_VALUE if i < 0 else tracks.one((str((int(i) >> 24) & 0xFFFFFF), str(int(i) & 0xFFFFFF)))
        for i in distinct
    ]
    return np.array(codes, np.int32)[inverse] if codes else np.empty(0, np.int32)
