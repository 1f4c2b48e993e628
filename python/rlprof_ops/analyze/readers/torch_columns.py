"""Collects the events of a torch trace in columns, batch by batch: typed ones, and such as nobody foresaw."""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Sequence
from typing import TypeVar, cast

import numpy as np

from rlprof_ops.analyze.columns import (
    KERNEL,
    MEMCPY,
    MEMSET,
    NO_VALUE,
    Coder,
    Codes,
    Collective,
    Flags,
    Ints,
    Part,
)
from rlprof_ops.analyze.readers import typed_events
from rlprof_ops.analyze.readers.chrome_events import Event
from rlprof_ops.analyze.readers.decimal_time import INVALID, exact_nanoseconds, nanoseconds
from rlprof_ops.analyze.readers.scan import batches
from rlprof_ops.analyze.readers.spill import Parts

_GPU_KINDS = {"kernel": KERNEL, "gpu_memcpy": MEMCPY, "gpu_memset": MEMSET}
_TYPED_GPU_KINDS: dict[type, int] = {
    typed_events.Kernel: KERNEL, typed_events.Memcpy: MEMCPY, typed_events.Memset: MEMSET,
}  # fmt: skip
_SCANNED_GPU_KINDS = {
    batches.GPU_KERNEL: KERNEL, batches.GPU_MEMCPY: MEMCPY, batches.GPU_MEMSET: MEMSET,
}  # fmt: skip
_ELEMENT_BYTES = {
    "float": 4,
    "float32": 4,
    "int": 4,
    "int32": 4,
    "uint32": 4,
    "double": 8,
    "float64": 8,
    "long": 8,
    "int64": 8,
    "bfloat16": 2,
    "half": 2,
    "float16": 2,
    "short": 2,
    "char": 1,
    "byte": 1,
    "int8": 1,
    "uint8": 1,
    "bool": 1,
    "float8_e4m3fn": 1,
    "float8_e5m2": 1,
    "float8_e4m3fnuz": 1,
    "float8_e5m2fnuz": 1,
}
INT64 = 1 << 63
Value = TypeVar("Value", bound=Hashable)


class Recoding:
    """The codes of this file's tables by those of the scanner, which numbers what it has seen itself."""

    def __init__(self) -> None:
        self.names: Codes = np.empty(0, np.int32)
        self.tracks: Codes = np.empty(0, np.int32)
        self.collectives: Codes = np.full(1, NO_VALUE, np.int32)  # its last is that of -1: there is none
        self.pids: list[str] = []  # of the tracks

    def add(self, names: list[int], tracks: list[int], collectives: list[int]) -> None:
        """What the next codes of the scanner stand for."""
        if names:
            self.names = np.append(self.names, np.array(names, np.int32))
        if tracks:
            self.tracks = np.append(self.tracks, np.array(tracks, np.int32))
        if collectives:
            self.collectives = np.insert(self.collectives, -1, np.array(collectives, np.int32))


class Columns:
    """What the batches of one file are collected in."""

    def __init__(self) -> None:
        self.names = Coder[object]()
        self.tracks = Coder[tuple[object, object]]()
        self.collectives = Coder[Collective]()
        self.ranges = Parts()
        self.ops = Parts()
        self.launches = Parts()
        self.gpu = Parts()
        self.memory = Parts()
        self.events = 0
        self.damaged = 0
        self.pids: dict[str, int] = {}
        self.span: tuple[int, int] | None = None
        self.said: dict[tuple[object, ...], int] = {}
        self._scanned = Recoding()

    def add_scanned(self, batch: batches.Scanned) -> None:
        """Takes a batch that the compiled scanner read."""
        codes = self._scanned
        self.events += batch.events
        codes.add(
            [self.names.one(name) for name in batch.names],
            [self.tracks.one(track) for track in batch.tracks],
            [self._collective(said) for said in batch.collectives],
        )
        codes.pids += [str(pid) for pid, _ in batch.tracks]
        for kind, start, duration, name, track, correlation, device, stream, size, collective in batch.parts:
            if kind == batches.WINDOW:
                begins, lasts = np.frombuffer(start, np.int64), np.frombuffer(duration, np.int64)
                self.span = int(begins.min()), int((begins + lasts).max())
                continue
            if kind == batches.MEMORY:
                self.memory.append(
                    {
                        "time": np.frombuffer(start, np.int64),
                        "track": np.full(len(start) // 8, NO_VALUE, np.int32),
                        "device": np.frombuffer(device, np.int32),
                        "allocated_bytes": np.frombuffer(correlation, np.int64),
                        "reserved_bytes": np.frombuffer(size, np.int64),
                    }
                )
                continue
            part: Part = {
                "start": np.frombuffer(start, np.int64),
                "duration": np.frombuffer(duration, np.int64),
                "name": codes.names[np.frombuffer(name, np.int32)],
            }
            if kind in _SCANNED_GPU_KINDS:
                count = len(part["start"])
                part["kind"] = np.full(count, _SCANNED_GPU_KINDS[kind], np.uint8)
                part["device"] = np.frombuffer(device, np.int32)
                part["stream"] = np.frombuffer(stream, np.int32)
                part["correlation"] = np.frombuffer(correlation, np.int64)
                part["size_bytes"] = np.frombuffer(size, np.int64)
                part["collective"] = codes.collectives[np.frombuffer(collective, np.int32)]
                part["track"] = np.full(count, NO_VALUE, np.int32)
                self.gpu.append(part)
                continue
            tracks = np.frombuffer(track, np.int32)
            part["track"] = codes.tracks[tracks]
            if kind == batches.OP:
                pid = codes.pids[int(tracks[0])]
                self.pids[pid] = self.pids.get(pid, 0) + len(tracks)
                self.ops.append(part)
            elif kind == batches.RANGE:
                self.ranges.append(part)
            else:
                part["correlation"] = np.frombuffer(correlation, np.int64)
                self.launches.append(part)

    def add_typed(self, batch: Sequence[typed_events.Typed]) -> bool:
        """Takes a batch of `typed_events`; False, and nothing taken, where the text of its times is
        needed.
        """
        groups: dict[type, list[typed_events.HostEvent]] = {}
        get = groups.get
        for event in batch:
            kind = type(event)
            group = get(kind)
            if group is None:
                groups[kind] = [event]
            else:
                group.append(event)
        parts: list[tuple[type, list[typed_events.HostEvent], Part]] = []
        for kind, events in groups.items():
            if not issubclass(kind, typed_events.HostEvent):
                continue
            start = exact_nanoseconds([event.ts for event in events])
            duration = exact_nanoseconds([event.dur for event in events])
            if start is None or duration is None:
                return False
            parts.append((kind, events, {"start": start, "duration": np.maximum(duration, 0)}))
        self.events += len(batch)
        for kind, events, part in parts:
            part["name"] = self.names.encode([event.name for event in events])
            if issubclass(kind, typed_events.Kernel):
                self._typed_gpu(_TYPED_GPU_KINDS[kind], cast("list[typed_events.Kernel]", events), part)
                continue
            part["track"] = _encode(
                self.tracks,
                list(zip([e.pid for e in events], [e.tid for e in events], strict=True)),
                _plain_track,
            )
            if kind is typed_events.Op:
                self.pids[str(events[0].pid)] = self.pids.get(str(events[0].pid), 0) + len(events)
                self.ops.append(part)
            elif kind is typed_events.Range:
                self.ranges.append(part)
            else:
                calls = cast("list[typed_events.CudaRuntime]", events)
                part["correlation"] = _ints([call.args.correlation for call in calls])
                self.launches.append(part)
        return True

    def _typed_gpu(self, kind: int, events: Sequence[typed_events.Kernel], part: Part) -> None:
        count, args = len(events), [event.args for event in events]
        part["kind"] = np.full(count, kind, np.uint8)
        for column, values, instead in (
            ("device", [a.device for a in args], "pid"),
            ("stream", [a.stream for a in args], "tid"),
        ):
            if typed_events.ABSENT in values:
                values = [
                    getattr(e, instead) if v == typed_events.ABSENT else v
                    for e, v in zip(events, values, strict=True)
                ]
            part[column] = _codes(values)
        part["correlation"] = _ints([a.correlation for a in args])
        part["size_bytes"] = np.full(count, NO_VALUE) if kind == KERNEL else _ints([a.bytes for a in args])
        said = [a.collective for a in args]
        part["collective"] = np.full(count, NO_VALUE, np.int32)
        if said.count(None) < count:
            rows = [row for row, op in enumerate(said) if op is not None]
            part["collective"][rows] = [self._collective(args[row]) for row in rows]
        part["track"] = np.full(count, NO_VALUE, np.int32)
        self.gpu.append(part)

    def add(self, batch: list[Event]) -> None:
        self.events += len(batch)
        groups: dict[str, list[Event]] = {}
        get = groups.get
        for event in batch:
            group = get(event.cat)
            if group is None:
                groups[event.cat] = [event]
            else:
                group.append(event)
        for category, events in groups.items():
            collect = self._collector(category)
            if collect is not None:
                collect(self, category, events)

    @staticmethod
    def _collector(category: str) -> Callable[[Columns, str, list[Event]], None] | None:
        if category in _GPU_KINDS:
            return Columns._gpu
        if category == "cpu_op":
            return Columns._ops
        if category == "user_annotation":
            return Columns._ranges
        if category == "cpu_instant_event":
            return Columns._memory
        if category == "Trace":
            return Columns._span
        if category.endswith(("_runtime", "_driver")):
            return Columns._launches
        # flows (correlation says the same), Python frames, profiler overhead, GPU copies of annotations
        return None

    def _times(self, events: list[Event]) -> tuple[list[Event], Ints, Ints]:
        """Keeps what has a start and a duration; the others are counted as damaged."""
        start = nanoseconds([event.ts for event in events])
        duration = nanoseconds([event.dur for event in events])
        good: Flags = (start != INVALID) & (duration != INVALID)
        if not good.all():
            kept = np.flatnonzero(good)
            self.damaged += len(events) - len(kept)
            events = [events[i] for i in kept]
            start, duration = start[kept], duration[kept]
        return events, start, np.maximum(duration, 0)

    def _spans(self, events: list[Event]) -> tuple[list[Event], Part]:
        events, start, duration = self._times(events)
        names = _encode(self.names, [event.name for event in events], str)
        return events, {"start": start, "duration": duration, "name": names}

    def _host_spans(self, events: list[Event]) -> tuple[list[Event], Part]:
        events, part = self._spans(events)
        part["track"] = _encode(self.tracks, [(event.pid, event.tid) for event in events], _plain_track)
        return events, part

    def _ops(self, _category: str, events: list[Event]) -> None:
        events, part = self._host_spans(events)
        for event in events[:1]:
            self.pids[str(event.pid)] = self.pids.get(str(event.pid), 0) + len(events)
        self.ops.append(part)

    def _ranges(self, _category: str, events: list[Event]) -> None:
        self.ranges.append(self._host_spans(events)[1])

    def _launches(self, _category: str, events: list[Event]) -> None:
        events, part = self._host_spans(events)
        part["correlation"] = _ints([event.args.correlation if event.args else NO_VALUE for event in events])
        self.launches.append(part)

    def _gpu(self, category: str, events: list[Event]) -> None:
        events, part = self._spans(events)
        part["kind"] = np.full(len(events), _GPU_KINDS[category], np.uint8)
        args = [event.args for event in events]
        part["device"] = _codes(
            [a.device if a and a.device is not None else e.pid for a, e in zip(args, events, strict=True)]
        )
        part["stream"] = _codes(
            [a.stream if a and a.stream is not None else e.tid for a, e in zip(args, events, strict=True)]
        )
        part["correlation"] = _ints([a.correlation if a else NO_VALUE for a in args])
        copied = category != "kernel"  # what a kernel calls its bytes is no size of a copy
        part["size_bytes"] = _ints(
            [a.bytes if copied and a and a.bytes is not None else NO_VALUE for a in args]
        )
        part["collective"] = np.fromiter(
            (NO_VALUE if a is None or a.collective is None else self._collective(a) for a in args),
            np.int32,
            len(args),
        )
        part["track"] = np.full(len(events), NO_VALUE, np.int32)
        self.gpu.append(part)

    def _collective(self, args: typed_events.CollectiveArgs) -> int:
        """The code of a kernel's collective. Many kernels say the same, so what they say is looked up as
        it stands.
        """
        says = (
            args.collective,
            args.dtype,
            args.in_elements,
            args.out_elements,
            args.group_size,
            args.group_name,
            args.group_description,
            args.group_ranks if type(args.group_ranks) is str else str(args.group_ranks),
            args.sequence,
        )
        try:
            code = self.said.get(says)
        except TypeError:
            return NO_VALUE
        if code is None:
            code = self.said[says] = self._new_collective(args)
        return code

    def _new_collective(self, args: typed_events.CollectiveArgs) -> int:
        width = _ELEMENT_BYTES.get(str(args.dtype).lower(), 0)
        return self.collectives.one(
            Collective(
                op=text(args.collective),
                group=text(args.group_description or args.group_name or ""),
                group_size=whole(args.group_size),
                dtype=text(args.dtype or ""),
                in_bytes=_scaled(args.in_elements, width),
                out_bytes=_scaled(args.out_elements, width),
                sequence=whole(args.sequence),
                name=text("" if args.group_name is None else args.group_name),
                members=members(args.group_ranks),
            )
        )

    def _memory(self, _category: str, events: list[Event]) -> None:
        told = [
            (event.ts, event.args)
            for event in events
            if event.name == "[memory]" and event.args is not None and event.args.allocated is not None
        ]
        times = nanoseconds([ts for ts, _ in told])
        part: Part = {
            "time": times,
            "track": np.full(len(told), NO_VALUE, np.int32),
            "device": _codes(
                [NO_VALUE if whole(args.memory_type) == 0 else args.memory_device for _, args in told]
            ),
            "allocated_bytes": _ints([args.allocated for _, args in told]),
            "reserved_bytes": _ints([args.reserved for _, args in told]),
        }
        good = times != INVALID
        self.memory.append({key: column[good] for key, column in part.items()})

    def _span(self, _category: str, events: list[Event]) -> None:
        _, start, duration = self._times(events)
        if len(start):
            self.span = (int(start.min()), int((start + duration).max()))


def text(value: object) -> str:
    return value if type(value) is str else "" if value is None else str(value)[:1000]


def members(ranks: object) -> str:
    """The ranks of a process group, "0,1,2", from "[0, 1, 2]" or a list; "" where some are left out."""
    listed = ranks if isinstance(ranks, str) else "" if ranks is None else str(ranks)
    return "" if "..." in listed else re.sub(r"[^0-9,]", "", listed)


def _encode(coder: Coder[Value], values: Sequence[Value], plain: Callable[[Value], Value]) -> Codes:
    try:
        return coder.encode(values)
    except TypeError:  # a list or an object where a name, pid or tid belongs
        return coder.encode([plain(value) for value in values])


def _plain_track(track: tuple[object, object]) -> tuple[object, object]:
    return str(track[0]), str(track[1])


def whole(value: object) -> int:
    if isinstance(value, bool):
        return NO_VALUE
    if isinstance(value, float):
        value = int(value) if abs(value) < INT64 and value == value else NO_VALUE
    if isinstance(value, str):
        value = int(value) if value.isascii() and value.isdigit() and len(value) < 19 else NO_VALUE
    return value if isinstance(value, int) and -INT64 <= value < INT64 else NO_VALUE


def _scaled(elements: object, width: int) -> int:
    count = whole(elements)
    return count * width if count >= 0 and width and count < INT64 // 16 else NO_VALUE


def _ints(values: Sequence[object]) -> Ints:
    try:
        return np.array(values, np.int64)
    except (TypeError, ValueError, OverflowError):
        return np.fromiter((whole(value) for value in values), np.int64, len(values))


def _codes(values: Sequence[object]) -> Codes:
    wide = _ints(values)
    return np.where((wide >= -1) & (wide < 1 << 31), wide, NO_VALUE).astype(np.int32)
