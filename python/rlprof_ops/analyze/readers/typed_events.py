"""Events typed by their category, so that what nothing is computed from is passed over while it is parsed.

Half of a trace's events are flows that repeat the correlation, and most of an operator's text is its
arguments. Here times are floats: see `decimal_time.exact_nanoseconds` for when those are as good as their
text. A batch that holds anything else than what is listed here is refused as a whole, and `chrome_events`
reads it with types that take everything.
"""

from __future__ import annotations

from functools import reduce
from operator import or_
from types import GenericAlias
from typing import cast

import msgspec

ABSENT = -(1 << 62)  # of a number that the event does not tell

SKIPPED = (
    "ac2g",
    "async_cpu_to_gpu",
    "async_gpu",
    "fwdbwd",
    "python_function",
    "gpu_user_annotation",
    "overhead",
    "cuda_sync",
    "cuda_profiler_range",
    "async_cpu",
)


class HostEvent(msgspec.Struct, gc=False, tag_field="cat"):
    """What ops, ranges and calls of a runtime have in common."""

    name: str
    ts: float
    dur: float
    pid: object = None
    tid: object = None


class Op(HostEvent, gc=False, tag="cpu_op"):
    """An operator; its arguments are not read."""


class Range(HostEvent, gc=False, tag="user_annotation"):
    """A named range of the application."""


class LaunchArgs(msgspec.Struct, gc=False, frozen=True):
    correlation: int = -1


_LAUNCH_ARGS = LaunchArgs()


class CudaRuntime(HostEvent, gc=False, tag="cuda_runtime"):
    """A call of a runtime or driver; the categories differ, the columns do not."""

    args: LaunchArgs = _LAUNCH_ARGS


class CudaDriver(CudaRuntime, gc=False, tag="cuda_driver"): ...


class HipRuntime(CudaRuntime, gc=False, tag="hip_runtime"): ...


class CollectiveArgs(msgspec.Struct, gc=False, frozen=True):
    """What a kernel of NCCL or RCCL says of its collective."""

    collective: object = msgspec.field(name="Collective name", default=None)
    dtype: object = None
    in_elements: object = msgspec.field(name="In msg nelems", default=None)
    out_elements: object = msgspec.field(name="Out msg nelems", default=None)
    group_size: object = msgspec.field(name="Group size", default=None)
    group_name: object = msgspec.field(name="Process Group Name", default=None)
    group_description: object = msgspec.field(name="Process Group Description", default=None)
    group_ranks: object = msgspec.field(name="Process Group Ranks", default=None)
    sequence: object = msgspec.field(name="Seq", default=None)


class GpuArgs(CollectiveArgs, gc=False, frozen=True):
    """The few arguments of work on a GPU that anything is computed from."""

    device: int = ABSENT
    stream: int = ABSENT
    correlation: int = -1
    bytes: int = -1


_GPU_ARGS = GpuArgs()


class Kernel(HostEvent, gc=False, tag="kernel"):
    args: GpuArgs = _GPU_ARGS


class Memcpy(Kernel, gc=False, tag="gpu_memcpy"): ...


class Memset(Kernel, gc=False, tag="gpu_memset"): ...


_skipped = [
    msgspec.defstruct(f"Skipped_{category}", [], gc=False, tag_field="cat", tag=category)
    for category in SKIPPED
]
Typed = Op | Range | CudaRuntime | Kernel  # what a batch is made of
_kinds = reduce(or_, (Range, CudaRuntime, CudaDriver, HipRuntime, Kernel, Memcpy, Memset, *_skipped), Op)
decoder = msgspec.json.Decoder(cast("type[list[Typed]]", GenericAlias(list, (_kinds,))))
