"""Batches of a trace that the compiled scanner reads: columns instead of events, or nothing where one is
unusual.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec

from rlprof_ops import env_names
from rlprof_ops.analyze.columns import Shape
from rlprof_ops.analyze.operator_flops import COUNTED
from rlprof_ops.analyze.readers.event_args import CollectiveArgs, shape_of

if TYPE_CHECKING:
    from rlprof_ops.analyze.readers.scan._trace_scan import Part, TraceScanner

OP, RANGE, CUDA_RUNTIME, CUDA_DRIVER, HIP_RUNTIME, GPU_KERNEL, GPU_MEMCPY, GPU_MEMSET = range(8)
MEMORY, WINDOW = 8, 9  # samples of the allocator, and the time that was profiled
_QUOTED = tuple(msgspec.json.encode(name) for name in COUNTED)
_shapes = msgspec.json.Decoder(list[tuple[msgspec.Raw, msgspec.Raw, msgspec.Raw]])
_REFUSALS = 8  # batches that may be refused beyond those that were taken, before the file is read in Python


@dataclass(frozen=True)
class Scanned:
    """What one batch holds: `parts` are its columns by kind of event. Codes hold for all batches of a file:
    `names`, `tracks`, `collectives` and `shapes` are what the codes stand for that no batch before had.
    """

    events: int
    parts: list[Part]
    names: list[str]
    tracks: list[tuple[object, object]]
    collectives: list[CollectiveArgs]
    shapes: list[Shape]


class BatchScanner:
    """Scans the batches of one file, until `in_vain` was said too often."""

    def __init__(self, compiled: TraceScanner) -> None:
        self._compiled: TraceScanner | None = compiled
        self._left = _REFUSALS

    def in_vain(self) -> None:
        """A sound batch was refused: it was scanned for nothing."""
        self._left -= 1
        if not self._left:
            self._compiled = None

    def scan(self, text: bytes, end: int) -> Scanned | None:
        """`text[:end]` as columns; None where that is no list of whole events, or one that only the reader
        in Python understands.
        """
        found = self._compiled.scan(text, end) if self._compiled else None
        if found is None:
            return None
        self._left += 1
        events, parts, names, tracks, collectives, shapes = found
        return Scanned(
            events,
            parts,
            msgspec.json.decode(names),
            [(pid, tid) for pid, tid in msgspec.json.decode(tracks)],
            [CollectiveArgs(*said) for said in msgspec.json.decode(collectives)],
            [shape_of(*said) for said in _shapes.decode(shapes)],
        )


def new_scanner() -> BatchScanner | None:
    """A scanner for one file; None where `unused` says why."""
    if unused():
        return None
    from rlprof_ops.analyze.readers.scan._trace_scan import TraceScanner

    return BatchScanner(TraceScanner(_QUOTED))


def unused() -> str:
    """Why traces are read without the scanner; "" where they are read with it."""
    if os.environ.get(env_names.SCANNER) == "0":
        return f"{env_names.SCANNER} is 0"
    try:
        from rlprof_ops.analyze.readers.scan._trace_scan import TraceScanner  # noqa: F401
    except ImportError as error:
        return f"not built, not of this version, or not for this Python ({error})"
    return ""
