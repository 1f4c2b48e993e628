"""How far the requests of the step that runs are, over all engines of the job; the head counts."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

from rlprof_ops.request.step_part import StepPart
from rlprof_ops.supervisor.control_channel import Message


@dataclass(frozen=True)
class RequestsCounted(Message):
    """Of the engine in process `pid` of a node: how many requests have come and are done since it began, and
    the tokens of the longest answer that it makes.
    """

    pid: int
    came: int
    done: int
    longest: int


class RequestShares:
    """Tells when a share of a step's requests is done. How many a step has shows when all have come; until
    then it is at least as many as the smaller of the two steps before had: one may have validated too.
    """

    def __init__(self) -> None:
        self._engines: dict[tuple[str, int], RequestsCounted] = {}
        self._before = 0  # done before the step began
        self._totals: deque[int] = deque(maxlen=2)
        self._told: set[str] = set()

    def begin(self) -> None:
        self._before = sum(each.done for each in self._engines.values())
        self._told.clear()

    def end(self) -> None:
        self._totals.append(self._came)

    @property
    def _came(self) -> int:
        return sum(each.came for each in self._engines.values()) - self._before

    def take(self, node: str, counted: RequestsCounted, parts: Iterable[StepPart]) -> list[str]:
        """What of that which `parts` begin or end with is reached by this, and was not before."""
        if (node, counted.pid) not in self._engines:
            self._before += counted.done
        self._engines[node, counted.pid] = counted
        done = sum(each.done for each in self._engines.values()) - self._before
        total = max(self._came, min(self._totals, default=0))
        reached: dict[str | None, bool] = {}
        for part in parts:
            if part.done is not None:
                reached[part.begins_with] = 0 < total * part.done <= done * 100
            elif part.tokens is not None:
                first, stop = part.tokens
                reached[part.begins_with] = counted.longest >= first
                reached[part.ends_with] = stop is not None and counted.longest >= stop
        new = [name for name, is_so in reached.items() if name and is_so and name not in self._told]
        self._told.update(new)
        return new
