"""The arguments of events that anything is computed from, by what the event is."""

from __future__ import annotations

import msgspec

from rlprof_ops.analyze.columns import Shape


class LaunchArgs(msgspec.Struct, gc=False, frozen=True):
    """What a call of a runtime or driver says."""

    correlation: object = None


_NOTHING = msgspec.Raw(b"null")


class ShapeArgs(msgspec.Struct, gc=False, frozen=True):
    """What an operator says of its inputs."""

    dims: msgspec.Raw = msgspec.field(name="Input Dims", default=_NOTHING)
    types: msgspec.Raw = msgspec.field(name="Input type", default=_NOTHING)
    concrete: msgspec.Raw = msgspec.field(name="Concrete Inputs", default=_NOTHING)


def shape_of(dims: msgspec.Raw, types: msgspec.Raw, concrete: msgspec.Raw) -> Shape:
    """The arguments of an operator as they are kept."""
    told = [bytes(raw).decode("utf-8", "replace") for raw in (dims, types, concrete)]
    return told[0], told[1], told[2]


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
    """What work on a GPU says."""

    device: object = None
    stream: object = None
    correlation: object = None
    bytes: object = None


class MemoryArgs(msgspec.Struct, gc=False, frozen=True):
    """What a sample of the allocator says."""

    allocated: object = msgspec.field(name="Total Allocated", default=None)
    reserved: object = msgspec.field(name="Total Reserved", default=None)
    device: object = msgspec.field(name="Device Id", default=None)
    device_type: object = msgspec.field(name="Device Type", default=None)
