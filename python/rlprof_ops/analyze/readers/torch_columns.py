"""Collects the events of a torch trace in columns, batch by batch."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar, cast

import msgspec
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
    Shape,
)
from rlprof_ops.analyze.operator_flops import COUNTED, ELEMENT_BYTES
from rlprof_ops.analyze.readers.chrome_events import DAMAGE, Event, without_lone_surrogates
from rlprof_ops.analyze.readers.decimal_time import INVALID, nanoseconds
from rlprof_ops.analyze.readers.event_args import (
    CollectiveArgs,
    GpuArgs,
    LaunchArgs,
    MemoryArgs,
    ShapeArgs,
    shape_of,
)
from rlprof_ops.analyze.readers.scan import batches
from rlprof_ops.analyze.readers.spill import Parts

_GPU_KINDS = {
    "kernel": KERNEL, "gpu_memcpy": MEMCPY, "gpu_memset": MEMSET,
    "Kernel": KERNEL, "Memcpy": MEMCPY, "Memset": MEMSET,
}  # fmt: skip
"""Categories of Kineto; those in capitals until torch 1.10."""
_SCANNED_GPU_KINDS = {
    batches.GPU_KERNEL: KERNEL, batches.GPU_MEMCPY: MEMCPY, batches.GPU_MEMSET: MEMSET,
}  # fmt: skip
INT64 = 1 << 63
Value = TypeVar("Value", bound=Hashable)
Args = TypeVar("Args", LaunchArgs, GpuArgs, MemoryArgs, ShapeArgs)


@dataclass(frozen=True)
class ArgsReader(Generic[Args]):
    """Reads the arguments of events of one kind; `absent` are those of an event without any."""

    many: msgspec.json.Decoder[list[Args | None]]
    one: msgspec.json.Decoder[Args | None]
    absent: Args

    def read(self, texts: Sequence[msgspec.Raw | bytes]) -> list[Args | None]:
        """Of each text what it says, None where it is no object of arguments."""
        try:
            found = self.many.decode(b"".join((b"[", b",".join(texts), b"]")))
        except DAMAGE:
            return [self._read_one(text) for text in texts]
        return [self.absent if args is None else args for args in found]

    def _read_one(self, text: msgspec.Raw | bytes) -> Args | None:
        for attempt in (bytes(text), without_lone_surrogates(bytes(text))):
            try:
                return self.one.decode(attempt) or self.absent
            except DAMAGE:
                continue
        return None


_launch_args = ArgsReader(
    msgspec.json.Decoder(list[LaunchArgs | None]), msgspec.json.Decoder(LaunchArgs | None), LaunchArgs()
)
_gpu_args = ArgsReader(
    msgspec.json.Decoder(list[GpuArgs | None]), msgspec.json.Decoder(GpuArgs | None), GpuArgs()
)
_memory_args = ArgsReader(
    msgspec.json.Decoder(list[MemoryArgs | None]), msgspec.json.Decoder(MemoryArgs | None), MemoryArgs()
)
_shape_args = ArgsReader(
    msgspec.json.Decoder(list[ShapeArgs | None]), msgspec.json.Decoder(ShapeArgs | None), ShapeArgs()
)


class Recoding:
    """The codes of this file's tables by those of the scanner, which numbers what it has seen itself."""

    def __init__(self) -> None:
        self.names: Codes = np.empty(0, np.int32)
        self.tracks: Codes = np.empty(0, np.int32)
        self.shapes: Codes = np.empty(0, np.int32)
        self.collectives: Codes = np.full(1, NO_VALUE, np.int32)  # its last is that of -1: there is none

    def add(self, names: list[int], tracks: list[int], collectives: list[int], shapes: list[int]) -> None:
        """What the next codes of the scanner stand for."""
        if names:
            self.names = np.append(self.names, np.array(names, np.int32))
        if tracks:
            self.tracks = np.append(self.tracks, np.array(tracks, np.int32))
        if shapes:
            self.shapes = np.append(self.shapes, np.array(shapes, np.int32))
        if collectives:
            self.collectives = np.insert(self.collectives, -1, np.array(collectives, np.int32))


class Columns:
    """What the batches of one file are collected in."""

    def __init__(self) -> None:
        self.names = Coder[object]()
        self.tracks = Coder[tuple[object, object]]()
        self.collectives = Coder[Collective]()
        self.shapes = Coder[Shape]()
        self.ranges = Parts()
        self.ops = Parts()
        self.shaped = Parts()
        self.launches = Parts()
        self.gpu = Parts()
        self.memory = Parts()
        self.events = 0
        self.damaged = 0
        self.ops_by_track: dict[int, int] = {}
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
            [self.shapes.one(shape) for shape in batch.shapes],
        )
        for kind, start, duration, name, track, correlation, device, stream, size, told in batch.parts:
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
                part["collective"] = codes.collectives[np.frombuffer(told, np.int32)]
                part["track"] = np.full(count, NO_VALUE, np.int32)
                self.gpu.append(part)
                continue
            part["track"] = codes.tracks[np.frombuffer(track, np.int32)]
            if kind == batches.OP:
                self._add_ops(part)
                shapes = np.frombuffer(told, np.int32)
                self._add_shaped(part, np.flatnonzero(shapes >= 0), codes.shapes[shapes[shapes >= 0]])
            elif kind == batches.RANGE:
                self.ranges.append(part)
            else:
                part["correlation"] = np.frombuffer(correlation, np.int64)
                self.launches.append(part)

    def add_batch(self, batch: Sequence[Event | batches.Scanned]) -> None:
        """Takes what `ChromeEvents` gives."""
        scanned = batch[0]
        if isinstance(scanned, batches.Scanned):
            self.add_scanned(scanned)
        else:
            self.add(cast("list[Event]", batch))

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
        if category in ("cpu_op", "Operator"):
            return Columns._ops
        if category == "user_annotation":
            return Columns._ranges
        if category == "cpu_instant_event":
            return Columns._memory
        if category == "Trace":
            return Columns._span
        if category.endswith(("_runtime", "_driver")) or category == "Runtime":
            return Columns._launches
        # flows (correlation says the same), Python frames, profiler overhead, GPU copies of annotations
        return None

    def _timed(self, events: list[Event]) -> tuple[list[Event], Part]:
        """What has a start and a duration; the others are lost."""
        start = nanoseconds([event.ts for event in events])
        duration = nanoseconds([event.dur for event in events])
        part: Part = {"start": start, "duration": np.maximum(duration, 0)}
        good: Flags = (start != INVALID) & (duration != INVALID)
        return (events, part) if good.all() else self._kept(good, events, part)

    def _spans(self, events: list[Event]) -> tuple[list[Event], Part]:
        events, part = self._timed(events)
        part["name"] = self.names.encode(_texts([event.name for event in events]))
        return events, part

    def _kept(self, good: Flags, events: list[Event], part: Part) -> tuple[list[Event], Part]:
        """Those that can be used; the others are lost."""
        kept = np.flatnonzero(good)
        self.events -= len(events) - len(kept)
        self.damaged += len(events) - len(kept)
        return [events[i] for i in kept], {key: column[kept] for key, column in part.items()}

    def _host_spans(self, events: list[Event]) -> tuple[list[Event], Part]:
        events, part = self._spans(events)
        pids, tids = _ids([event.pid for event in events]), _ids([event.tid for event in events])
        part["track"] = self.tracks.encode(list(zip(pids, tids, strict=True)))
        return events, part

    def _with_args(
        self, events: list[Event], part: Part, reader: ArgsReader[Args]
    ) -> tuple[list[Event], list[Args], Part]:
        """The same with what the events say; those whose arguments are no object are lost."""
        found = reader.read([event.args if len(event.args) else b"null" for event in events])
        said = [args for args in found if args is not None]
        if len(said) < len(found):
            good = np.array([args is not None for args in found], np.bool_)
            events, part = self._kept(good, events, part)
        return events, said, part

    def _ops(self, _category: str, events: list[Event]) -> None:
        events, part = self._host_spans(events)
        self._add_ops(part)
        counted = [row for row, e in enumerate(events) if isinstance(e.name, str) and e.name in COUNTED]
        found = _shape_args.read([events[row].args if len(events[row].args) else b"null" for row in counted])
        told = {
            row: self.shapes.one(shape_of(args.dims, args.types, args.concrete))
            for row, args in zip(counted, found, strict=True)
            if args is not None and bytes(args.dims) != b"null"
        }
        self._add_shaped(part, np.array(list(told), np.int64), np.array(list(told.values()), np.int32))

    def _add_shaped(self, part: Part, rows: Ints, shapes: Codes) -> None:
        if len(rows):
            self.shaped.append({name: column[rows] for name, column in part.items()} | {"shape": shapes})

    def _add_ops(self, part: Part) -> None:
        counts = np.bincount(part["track"])
        for code in np.flatnonzero(counts).tolist():
            self.ops_by_track[code] = self.ops_by_track.get(code, 0) + int(counts[code])
        self.ops.append(part)

    def pid(self) -> str:
        """The process that ran most operators, "" where none did."""
        by_pid: dict[str, int] = {}
        tracks = self.tracks.values()
        for code, count in self.ops_by_track.items():
            pid = text(tracks[code][0])
            by_pid[pid] = by_pid.get(pid, 0) + count
        return max(by_pid, key=by_pid.__getitem__, default="")

    def _ranges(self, _category: str, events: list[Event]) -> None:
        self.ranges.append(self._host_spans(events)[1])

    def _launches(self, _category: str, events: list[Event]) -> None:
        events, args, part = self._with_args(*self._host_spans(events), _launch_args)
        part["correlation"] = _ints([a.correlation for a in args])
        self.launches.append(part)

    def _gpu(self, category: str, events: list[Event]) -> None:
        events, args, part = self._with_args(*self._spans(events), _gpu_args)
        part["kind"] = np.full(len(events), _GPU_KINDS[category], np.uint8)
        part["device"] = _codes(
            [e.pid if a.device is None else a.device for a, e in zip(args, events, strict=True)]
        )
        part["stream"] = _codes(
            [e.tid if a.stream is None else a.stream for a, e in zip(args, events, strict=True)]
        )
        part["correlation"] = _ints([a.correlation for a in args])
        copied = category != "kernel"  # what a kernel calls its bytes is no size of a copy
        part["size_bytes"] = _ints([a.bytes for a in args]) if copied else np.full(len(args), NO_VALUE)
        part["collective"] = np.full(len(args), NO_VALUE, np.int32)
        rows = [row for row, a in enumerate(args) if a.collective is not None]
        part["collective"][rows] = [self._collective(args[row]) for row in rows]
        part["track"] = np.full(len(events), NO_VALUE, np.int32)
        self.gpu.append(part)

    def _collective(self, args: CollectiveArgs) -> int:
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
            _listed(args.group_ranks),
            args.sequence,
        )
        try:
            code = self.said.get(says)
        except TypeError:
            return NO_VALUE
        if code is None:
            code = self.said[says] = self._new_collective(args)
        return code

    def _new_collective(self, args: CollectiveArgs) -> int:
        width = ELEMENT_BYTES.get(text(args.dtype).lower(), 0)
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
        events = [event for event in events if event.name == "[memory]"]
        events, said, _ = self._with_args(events, {}, _memory_args)
        sampled = [row for row, args in enumerate(said) if args.allocated is not None]
        events, said = [events[row] for row in sampled], [said[row] for row in sampled]
        times = nanoseconds([event.ts for event in events])
        part: Part = {
            "time": times,
            "track": np.full(len(said), NO_VALUE, np.int32),
            "device": _codes([NO_VALUE if whole(a.device_type) == 0 else a.device for a in said]),
            "allocated_bytes": _ints([a.allocated for a in said]),
            "reserved_bytes": _ints([a.reserved for a in said]),
        }
        self.memory.append(self._kept(times != INVALID, events, part)[1])

    def _span(self, _category: str, events: list[Event]) -> None:
        part = self._timed(events)[1]
        start, lasts = part["start"], part["duration"]
        if len(start):
            self.span = int(start.min()), int(np.add(start, lasts).max())


def text(value: object) -> str:
    """What a value says, whatever it is."""
    return value if type(value) is str else _listed(value)[:1000]


def _listed(value: object) -> str:
    try:
        return "" if value is None else str(value)
    except (RecursionError, ValueError):  # nested as deep, or as long a number, as could just be decoded
        return "?"


def members(ranks: object) -> str:
    """The ranks of a process group, "0,1,2", from "[0, 1, 2]" or a list; "" where some are left out."""
    listed = _listed(ranks)
    return "" if "..." in listed else re.sub(r"[^0-9,]", "", listed)


def _texts(values: Sequence[object]) -> Sequence[object]:
    return values if set(map(type, values)) <= {str} else [text(value) for value in values]


def _ids(values: Sequence[object]) -> Sequence[object]:
    """Of processes or threads; what is no number and no text stands as its text."""
    plain = {int, str, float, type(None)}
    if set(map(type, values)) <= plain:
        return values
    return [value if type(value) in plain else text(value) for value in values]


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
    if set(map(type, values)) <= {int}:
        with contextlib.suppress(OverflowError):
            return np.array(values, np.int64)
    return np.fromiter((whole(value) for value in values), np.int64, len(values))


def _codes(values: Sequence[object]) -> Codes:
    wide = _ints(values)
    return np.where((wide >= -1) & (wide < 1 << 31), wide, NO_VALUE).astype(np.int32)
