"""Work and what it waited for, as a graph that can be replayed: the path that decided its length, the slack
of all else, and the length with other durations.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Graph:
    """Pieces of work with measured times in nanoseconds; `after[i]` are the pieces that piece i waited for.

    A piece begins its own measured lag after the last of them ended: without a change, a replay gives what
    was measured. A piece that waited for none begins its lag after `origin`. Raises ValueError where the
    pieces wait for each other in a circle.
    """

    start: tuple[int, ...]
    end: tuple[int, ...]
    after: tuple[tuple[int, ...], ...]
    origin: int
    order: tuple[int, ...] = field(init=False)
    duration: tuple[int, ...] = field(init=False)
    lag: tuple[int, ...] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "order", _in_order(self.after))
        object.__setattr__(self, "duration", tuple(b - a for a, b in zip(self.start, self.end, strict=True)))
        object.__setattr__(self, "lag", tuple(a - self.ready(i) for i, a in enumerate(self.start)))

    def __len__(self) -> int:
        return len(self.start)

    def ready(self, piece: int) -> int:
        """When the last of what a piece waited for had ended."""
        return max((self.end[p] for p in self.after[piece]), default=self.origin)

    @property
    def length(self) -> int:
        return max(self.end, default=self.origin) - self.origin


def replayed(graph: Graph, duration: Sequence[int], lag: Sequence[int] | None = None) -> int:
    """The length of the graph where its pieces last `duration` and begin `lag` after they could."""
    lags = graph.lag if lag is None else lag
    ends = [0] * len(graph)
    for piece in graph.order:
        before = graph.after[piece]
        begin = graph.origin
        if before:
            begin = max([ends[p] for p in before])
        ends[piece] = begin + lags[piece] + duration[piece]
    return max(ends, default=graph.origin) - graph.origin


def critical_path(graph: Graph) -> list[int]:
    """The pieces that decided the length, first to last: each is the last that the next one waited for."""
    if not len(graph):
        return []
    piece = max(range(len(graph)), key=lambda i: graph.end[i])
    path = [piece]
    while graph.after[piece]:
        piece = max(graph.after[piece], key=lambda i: graph.end[i])
        path.append(piece)
    return path[::-1]


def slacks(graph: Graph) -> list[int]:
    """How much longer each piece could have taken before the length had grown."""
    last = max(graph.end, default=0)
    slack = [last - end for end in graph.end]
    for piece in reversed(graph.order):
        ready = graph.ready(piece)
        for before in graph.after[piece]:
            slack[before] = min(slack[before], ready - graph.end[before] + slack[piece])
    return slack


def _in_order(after: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
    """The pieces so that each comes after all that it waited for."""
    next_ones: list[list[int]] = [[] for _ in after]
    open_count = [len(before) for before in after]
    for piece, before in enumerate(after):
        for other in before:
            next_ones[other].append(piece)
    order = [piece for piece, count in enumerate(open_count) if not count]
    for piece in order:  # grows while it is walked
        for other in next_ones[piece]:
            open_count[other] -= 1
            if not open_count[other]:
                order.append(other)
    if len(order) < len(after):
        raise ValueError("pieces of work wait for each other in a circle")
    return tuple(order)
