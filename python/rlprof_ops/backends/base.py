"""What every backend can say about itself: the files it writes and whether one of them is whole."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

OK = "ok"
EMPTY = "empty"
TRUNCATED = "truncated"


@dataclass(frozen=True)
class Check:
    """What a look into one report found. `state` is ok, empty or truncated; `reason` is "" when ok."""

    state: str
    reason: str = ""
    details: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Backend:
    """A way to take a capture.

    `suffixes`: how its reports end, the first being the one our own runtime writes.
    `check(path)`: reads as little of a report as tells whether it is whole; never raises for a bad file.
    """

    name: str
    suffixes: tuple[str, ...]
    check: Callable[[Path], Check]


def check_not_empty(path: Path) -> Check | None:
    """The part that all backends share: a `Check` when the file is missing or has no byte, else None."""
    try:
        size_bytes = path.stat().st_size
    except OSError as error:
        return Check(TRUNCATED, f"cannot be read: {error.strerror or error}")
    if size_bytes == 0:
        return Check(EMPTY, "the file has no content", {"size_bytes": 0})
    return None
