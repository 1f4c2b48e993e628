"""Reads what a node's processes tell of their calls of collectives, each look once."""

from __future__ import annotations

from collections import deque
from pathlib import Path

from rlprof_ops.runtime import marks
from rlprof_ops.runtime.on_demand import arrivals
from rlprof_ops.runtime.on_demand.arrivals import Arrivals

_MOST_WAITING = 64  # looks that the head has not been told


class ArrivalFiles:
    """All processes of one node."""

    def __init__(self, node_dir: Path) -> None:
        self._folder = node_dir / marks.FOLDER
        self._seen: dict[str, int] = {}
        self._waiting: deque[Arrivals] = deque(maxlen=_MOST_WAITING)

    def look(self, most: int) -> tuple[Arrivals, ...]:
        """At most so many that have not been told; the others come with the next look."""
        for path in self._folder.glob(f"[0-9]*{arrivals.SUFFIX}"):
            try:
                changed_ns = path.stat().st_mtime_ns
            except OSError:
                continue
            if changed_ns != self._seen.get(path.name):
                self._seen[path.name] = changed_ns
                found = arrivals.read(path)
                if found is not None:
                    self._waiting.append(found)
        return tuple(self._waiting.popleft() for _ in range(min(most, len(self._waiting))))
