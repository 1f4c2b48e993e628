"""Which of the ways to write a range are in use: as the open windows need them."""

from __future__ import annotations

from collections.abc import Collection
from typing import Literal

from rlprof_ops import backends
from rlprof_ops.runtime.process.event_log import EventLog, log_once
from rlprof_ops.runtime.ranges import emitters
from rlprof_ops.runtime.ranges.emitters import RangeEmitter

_NONE_HERE = "neither the package nvtx nor torch.cuda.nvtx is there: reports will hold no ranges"


class EmitterSet:
    """Chooses, and makes each only when it is needed first."""

    def __init__(self, events: EventLog) -> None:
        self._events = events
        self._nvtx: RangeEmitter | Literal[False] | None = None  # False: there is none

    def choose(self, open_backends: Collection[str]) -> tuple[RangeEmitter, ...]:
        """What the open backends say of their `ranges`; equal tuples for equal backends."""
        kinds = {backends.get(name).ranges for name in open_backends}
        chosen: list[RangeEmitter | None] = []
        if "nvtx" in kinds:
            chosen.append(self._nvtx_ranges())
        if "record_function" in kinds:
            chosen.append(emitters.record_function_ranges())
        return tuple(recorder for recorder in chosen if recorder is not None)

    def _nvtx_ranges(self) -> RangeEmitter | None:
        if self._nvtx is None:
            self._nvtx = emitters.nvtx_ranges() or False
            if self._nvtx is False:
                log_once(_NONE_HERE)
                self._events.write("no_ranges", reason=_NONE_HERE)
        return self._nvtx or None
