"""The columns that every reader fills and every metric reads: one `Trace` a report file, times in int64
nanoseconds.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from functools import cached_property
from typing import Generic, TypeVar

import numpy as np
import numpy.typing as npt
from msgspec import Struct, field
from msgspec.structs import replace

Ints = npt.NDArray[np.int64]
Codes = npt.NDArray[np.int32]
Flags = npt.NDArray[np.bool_]
Column = npt.NDArray[np.generic]  # of a table, whichever
Part = dict[str, Column]  # some rows of a table
Track = tuple[str, str]  # (pid, tid)
Shape = tuple[str, str, str]
"""What an operator says of its inputs, as JSON: dimensions, types and plain values; "null" where nothing."""

KERNEL, MEMCPY, MEMSET = 0, 1, 2
NO_VALUE = -1
FEW_ROWS = 1 << 16  # of a table, with which what several metrics ask of it is kept


class Rows(Struct, frozen=True):
    """Columns of one length."""

    def __len__(self) -> int:
        return len(getattr(self, self.__struct_fields__[0]))


class Spans(Rows, frozen=True):
    """Intervals on host threads: `name` codes into `Trace.names`, `track` codes into `Trace.tracks`."""

    start: Ints  # (n,) nanoseconds
    duration: Ints  # (n,) nanoseconds, never negative
    name: Codes
    track: Codes

    @property
    def end(self) -> Ints:
        return self.start + self.duration


class Shaped(Spans, frozen=True):
    """The operators whose work their shapes tell, once more: `shape` codes into `Trace.shapes`."""

    shape: Codes

    @staticmethod
    def none() -> Shaped:
        times, codes = np.empty(0, np.int64), np.empty(0, np.int32)
        return Shaped(times, times, codes, codes, codes)


class Launches(Spans, frozen=True, dict=True):
    """Calls of the CUDA or HIP runtime and driver; `correlation` is -1 where the call names none."""

    correlation: Ints

    @property
    def index(self) -> LaunchIndex:
        """Kept where there are few calls: memory does not grow with the trace."""
        return self._index if len(self) < FEW_ROWS else LaunchIndex(self)

    @cached_property
    def _index(self) -> LaunchIndex:
        return LaunchIndex(self)


class GpuSpans(Spans, frozen=True):
    """Work on a GPU: `device` and `stream` say where it ran, `track` for which process (-1: the only one)."""

    kind: npt.NDArray[np.uint8]  # KERNEL, MEMCPY, MEMSET
    device: Codes
    stream: Codes
    correlation: Ints
    size_bytes: Ints  # -1 where unknown
    collective: Codes  # index into Trace.collectives, -1 where none


class MemorySamples(Rows, frozen=True):
    """What the allocator reported: torch's `[memory]` instants or nsys's memory-usage events."""

    time: Ints
    track: Codes  # of the process, -1: the only one
    device: Codes
    allocated_bytes: Ints
    reserved_bytes: Ints


class MetricSamples(Rows, frozen=True):
    """What a GPU's own counters said: `share` of a peak, which holds for the time since the sample before, in
    order of GPU, metric and time. `gpu` codes into `Origin.metered`, `metric` into what
    `readers.nsys_metrics` keeps.
    """

    time: Ints
    gpu: Codes
    metric: Codes
    share: npt.NDArray[np.float64]

    @staticmethod
    def none() -> MetricSamples:
        codes = np.empty(0, np.int32)
        return MetricSamples(np.empty(0, np.int64), codes, codes, np.empty(0, np.float64))


class Collective(Struct, frozen=True):
    """What a communication kernel says of itself; sizes in bytes of the whole message, -1 where unknown."""

    op: str
    group: str
    group_size: int
    dtype: str
    in_bytes: int
    out_bytes: int
    sequence: int
    name: str = ""  # of the communicator, one for all its ranks; `group` only describes it
    members: str = ""  # its ranks in the world it belongs to, "0,1,2"; "" where untold


class Origin(Struct, frozen=True):
    """Where and when a trace was taken, as far as the file itself says."""

    kind: str  # "torch" or "nsys"
    host: str = ""
    pid: int = NO_VALUE
    rank: int = NO_VALUE
    world_size: int = NO_VALUE
    on_utc: bool = False  # start times are UTC nanoseconds; otherwise they only compare within the file
    window_start: int = 0  # of the first event; `window_end`: of the last
    window_end: int = 0
    recorded: tuple[int, int] = (0, 0)  # from when to when, UTC nanoseconds, where the file says it
    devices: tuple[str, ...] = ()
    gpus: tuple[tuple[int, int, str], ...] = ()  # (pid, device as that process counts, UUID)
    metered: tuple[str, ...] = ()  # UUIDs, or names, of the GPUs whose counters were sampled
    processes: int = 1  # that the report holds and that are an identity of their own
    details: dict[str, str] = field(default_factory=dict)

    @property
    def world_rank(self) -> int:
        """Its rank as torch.distributed counts in the world of its process; `NO_VALUE`: untold."""
        return self.rank if self.kind == "torch" else NO_VALUE


class Trace(Struct, frozen=True, dict=True):
    """One report as columns.

    `ranges` are the named ranges of the application (NVTX, `record_function`), `ops` the framework's
    operators. `truncated` is why only a part could be read ("" when all was), `damaged` how many events were
    left out.
    """

    origin: Origin
    names: tuple[str, ...]
    tracks: tuple[Track, ...]
    ranges: Spans
    ops: Spans
    launches: Launches
    gpu: GpuSpans
    memory: MemorySamples
    collectives: tuple[Collective, ...] = ()
    shaped: Shaped = field(default_factory=Shaped.none)
    shapes: tuple[Shape, ...] = ()
    metrics: MetricSamples = field(default_factory=MetricSamples.none)
    events: int = 0
    damaged: int = 0
    truncated: str = ""

    @cached_property
    def asked_for(self) -> Ints:
        """When each piece of GPU work was asked for: see `metrics.kernels.launch_moments`."""
        return self.launches.index.asked_for(self.gpu, slice(None))

    def shift(self, offset_ns: int) -> Trace:
        """The same trace, all times later by `offset_ns`; the columns are changed in place, so the old
        trace is void.
        """
        origin = replace(
            self.origin,
            window_start=self.origin.window_start + offset_ns,
            window_end=self.origin.window_end + offset_ns,
        )
        for times in (
            self.ranges.start,
            self.ops.start,
            self.shaped.start,
            self.launches.start,
            self.gpu.start,
            self.memory.time,
            self.metrics.time,
        ):
            times += offset_ns
        return replace(self, origin=origin)


T = TypeVar("T", bound=Rows)
Integer = TypeVar("Integer", np.int32, np.int64, np.uint8)
Value = TypeVar("Value", bound=Hashable)

DTYPES: dict[str, type[np.generic]] = {
    "start": np.int64,
    "duration": np.int64,
    "time": np.int64,
    "correlation": np.int64,
    "size_bytes": np.int64,
    "allocated_bytes": np.int64,
    "reserved_bytes": np.int64,
    "kind": np.uint8,
    "name": np.int32,
    "track": np.int32,
    "device": np.int32,
    "stream": np.int32,
    "collective": np.int32,
    "shape": np.int32,
    "gpu": np.int32,
    "metric": np.int32,
    "share": np.float64,
}


def join(table: type[T], parts: list[Part]) -> T:
    """One table of many pieces, freeing the pieces column by column so that the peak is one column above
    the sum.
    """
    columns = {}
    for column in table.__struct_fields__:
        pieces = [part.pop(column) for part in parts]
        dtype = DTYPES[column]
        columns[column] = np.concatenate(pieces).astype(dtype, copy=False) if pieces else np.empty(0, dtype)
    return table(**columns)


def take(table: T, index: Column | slice) -> T:
    """The rows of a table that `index` (positions or a mask) selects."""
    return type(table)(*(getattr(table, column)[index] for column in table.__struct_fields__))


_FEW_CODES = 1 << 16


def distinct(values: npt.NDArray[Integer]) -> npt.NDArray[Integer]:
    """(k,) values that occur, in order. np.unique does the same, and imports numpy.ma for it, which takes as
    long as a small report; codes are counted here, which is faster than putting them in order.
    """
    if not len(values):
        return values
    if values.min() >= 0 and values.max() < len(values) + _FEW_CODES:
        return np.flatnonzero(np.bincount(values)).astype(values.dtype)
    ordered = np.sort(values)
    first = np.ones(len(ordered), np.bool_)
    np.not_equal(ordered[1:], ordered[:-1], out=first[1:])
    return ordered[first]


class _Codes(dict[Value, int]):
    def __missing__(self, value: Value) -> int:
        code = self[value] = len(self)
        return code


class Coder(Generic[Value]):
    """Dictionary encoding: equal values get equal codes, in order of first appearance."""

    def __init__(self) -> None:
        self._codes = _Codes[Value]()

    def encode(self, values: Iterable[Value]) -> Codes:
        """(n,) codes of n hashable values; raises TypeError on one that is not."""
        return np.array(list(map(self._codes.__getitem__, values)), np.int32)

    def one(self, value: Value) -> int:
        return self._codes[value]

    def values(self) -> tuple[Value, ...]:
        return tuple(self._codes)


def codes_where(names: tuple[str, ...], test: Callable[[str], bool]) -> Flags:
    """(len(names),) mask of the dictionary entries that pass `test`: names are tested once, not once an
    event.
    """
    return np.fromiter((test(name) for name in names), np.bool_, len(names))


class LaunchIndex:
    """Finds the call that launched a piece of GPU work, by its correlation."""

    def __init__(self, launches: Launches) -> None:
        known = launches.correlation
        self.order = None if bool((known[1:] >= known[:-1]).all()) else np.argsort(known, kind="stable")
        self.known = known if self.order is None else known[self.order]
        self.start = launches.start

    def rows(self, correlation: Ints) -> Ints:
        """(n,) row of the call for each of n correlations, -1 where none is in the trace."""
        if len(self.known) == 0 or len(correlation) == 0:
            return np.full(len(correlation), -1, np.int64)
        place = np.minimum(np.searchsorted(self.known, correlation), len(self.known) - 1)
        found = (self.known[place] == correlation) & (correlation > 0)
        return np.where(found, place if self.order is None else self.order[place], -1)

    def asked_for(self, gpu: GpuSpans, part: slice | Ints) -> Ints:
        """When some rows of GPU work were launched; where no call is known, when they ran."""
        row, own = self.rows(gpu.correlation[part]), gpu.start[part]
        return np.where(row >= 0, self.start[np.maximum(row, 0)], own) if len(self.known) else own
