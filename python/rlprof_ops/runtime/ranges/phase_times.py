"""What the ranges of one step sum up to."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

_MOST_NAMES = 64  # phases of one step that are told apart


@dataclass(frozen=True)
class Phase:
    """All ranges of one name in a step. `own_s` is without the ranges inside them."""

    count: int
    begin_s: float
    seconds: float
    own_s: float


def phases_of(rows: Iterable[tuple[str, int, int, int]], begin_ns: int) -> dict[str, Phase]:
    """What `(name, begin, end, depth)` sum up to, by name. Rows come in the order in which they ended."""
    spans = sorted(
        ((row[1], -row[2], str(row[0])) for row in rows if row[2] > row[1]), key=lambda row: row[:2]
    )
    own: list[int] = []
    open_at: list[int] = []
    for place, (begin, minus_end, _) in enumerate(spans):
        while open_at and -spans[open_at[-1]][1] <= begin:
            open_at.pop()
        own.append(-minus_end - begin)
        if open_at:
            own[open_at[-1]] -= min(-minus_end, -spans[open_at[-1]][1]) - begin
        open_at.append(place)
    found: dict[str, list[float]] = {}
    for (begin, minus_end, name), alone in zip(spans, own, strict=True):
        total = found.setdefault(name, [0, (begin - begin_ns) / 1e9, 0.0, 0.0])
        total[0] += 1
        total[2] += (-minus_end - begin) / 1e9
        total[3] += alone / 1e9
    return {name: Phase(int(total[0]), *total[1:]) for name, total in list(found.items())[:_MOST_NAMES]}
