"""Writes Perfetto trace packets, thousands at a time: varints padded to a fixed width make every packet of a
kind equally long, so a table of packets is one NumPy array. The package `perfetto` makes them one by one and
takes four times as long.

Field numbers are those of perfetto_trace.proto (TracePacket, TrackEvent, TrackDescriptor, InternedData); a
padded varint is legal protobuf. One sequence, names interned once at its start.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from rlprof_ops.analyze.columns import Ints

SEQUENCE = 1
_BEGIN, _END, _COUNTER = 1, 2, 4
_CLEARED, _NEEDS_STATE = 1, 2
_EXPLICIT_ORDER = 3
_TIME_BYTES, _TRACK_BYTES, _NAME_BYTES, _VALUE_BYTES = 9, 5, 4, 3  # 63, 35, 28 and 21 bits
Bytes = npt.NDArray[np.uint8]


def varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def number(field: int, value: int) -> bytes:
    return varint(field << 3) + varint(value)


def block(field: int, content: bytes | str) -> bytes:
    data = content.encode("utf-8", "replace") if isinstance(content, str) else content
    return varint(field << 3 | 2) + varint(len(data)) + data


def packet(content: bytes) -> bytes:
    return block(1, number(10, SEQUENCE) + content)


def first_packet(names: Sequence[str]) -> bytes:
    """Starts the sequence and interns the event names: iid 1 is names[0]."""
    interned = b"".join(block(2, number(1, iid) + block(2, name)) for iid, name in enumerate(names, 1))
    return packet(number(13, _CLEARED) + block(12, interned))


def track(uuid: int, name: str, parent: int = 0, order: int = 0, counter_unit: str = "") -> bytes:
    """A track below `parent` (0: at the top); its children are shown in the order of their `order`."""
    said = number(1, uuid) + (number(5, parent) if parent else b"") + block(2, name)
    said += block(8, block(6, counter_unit)) if counter_unit else number(11, _EXPLICIT_ORDER)
    return packet(block(60, said + number(12, order)))


def slices(start: Ints, end: Ints, uuid: Ints, name: Ints) -> Bytes:
    """Begin and end packets of n slices that do not overlap on their tracks, in order of time, ends before
    begins.

    start, end: (n,) nanoseconds, end > start; uuid: (n,) tracks; name: (n,) interned names, 1-based.
    """
    count = len(start)
    begin, finish = _table(count, _BEGIN, True), _table(count, _END, False)
    _fill(begin, start, uuid)
    _put(begin, begin.shape[1] - _NAME_BYTES, name, _NAME_BYTES)
    _fill(finish, end, uuid)
    time = np.concatenate((end, start))
    kind = np.concatenate((np.zeros(count, np.int8), np.ones(count, np.int8)))
    order = np.lexsort((kind, time))
    is_end = order < count
    widths: Ints = begin.shape[1] + is_end.astype(np.int64) * (finish.shape[1] - begin.shape[1])
    offset = np.cumsum(widths) - widths
    out = np.empty(int(widths.sum()), np.uint8)
    _scatter(out, offset[is_end], finish[order[is_end]])
    _scatter(out, offset[~is_end], begin[order[~is_end] - count])
    return out


def counters(time: Ints, uuid: Ints, value: Ints) -> Bytes:
    """Counter packets: (n,) times, tracks and values below 2^21."""
    inner = 2 + 1 + _TRACK_BYTES + 2 + _VALUE_BYTES
    table = np.zeros((len(time), 2 + 1 + _TIME_BYTES + 2 + 2 + 2 + inner), np.uint8)
    head = _head(table, inner, _COUNTER)
    table[:, head + _TRACK_BYTES : head + _TRACK_BYTES + 2] = (0xF0, 0x01)  # field 30, varint
    _fill(table, time, uuid)
    _put(table, head + _TRACK_BYTES + 2, value, _VALUE_BYTES)
    return table.reshape(-1)


def _table(count: int, kind: int, named: bool) -> Bytes:
    inner = 2 + 1 + _TRACK_BYTES + (1 + _NAME_BYTES if named else 0)
    table = np.zeros((count, 2 + 1 + _TIME_BYTES + 2 + 2 + 2 + inner), np.uint8)
    head = _head(table, inner, kind)
    if named:
        table[:, head + _TRACK_BYTES] = 10 << 3
    return table


_TIME_AT = 3
_TRACK_AT = _TIME_AT + _TIME_BYTES + 2 + 2 + 2 + 2 + 1


def _head(table: Bytes, inner: int, kind: int) -> int:
    """Fills what all rows share; returns where the track's varint stands."""
    size = table.shape[1] - 2
    after_time = _TIME_AT + _TIME_BYTES
    table[:, :3] = (0x0A, size, 8 << 3)
    table[:, after_time : after_time + 6] = (10 << 3, SEQUENCE, 13 << 3, _NEEDS_STATE, 11 << 3 | 2, inner)
    table[:, after_time + 6 : after_time + 9] = (9 << 3, kind, 11 << 3)
    return _TRACK_AT


def _fill(table: Bytes, time: Ints, uuid: Ints) -> None:
    _put(table, _TIME_AT, time, _TIME_BYTES)
    _put(table, _TRACK_AT, uuid, _TRACK_BYTES)


def _put(table: Bytes, at: int, values: Ints, width: int) -> None:
    """Varints of a fixed width: seven bits a byte, the continuation bit on all but the last."""
    for i in range(width):
        more = 0x80 if i + 1 < width else 0
        table[:, at + i] = (values >> (7 * i)) & 0x7F | more


def _scatter(out: Bytes, offset: Ints, rows: Bytes) -> None:
    for column in range(rows.shape[1]):
        out[offset + column] = rows[:, column]
