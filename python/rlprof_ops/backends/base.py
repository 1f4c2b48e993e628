"""What every backend can say about itself: the files it writes and whether one of them is whole."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

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
class Where:
    """Where a capture is to be taken, as far as the caller knows it.

    Attributes:
        gpu: whether the workers' machines have one; None when unknown, and then nothing is said about it.
        trainer: the trainer whose own profiler takes the capture; "" for ours.
    """

    gpu: bool | None = None
    trainer: str = ""


@dataclass(frozen=True)
class Verdict:
    """What a backend says about one capture: why it cannot be taken, and what has no effect in it."""

    errors: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()


class Asked(Protocol):
    """The part of a `CaptureSpec` that decides whether a backend can take it."""

    @property
    def options(self) -> Mapping[str, str]: ...

    @property
    def flags(self) -> Sequence[str]: ...

    @property
    def is_on(self) -> bool: ...


@dataclass(frozen=True)
class Backend:
    """A way to take a capture.

    `suffixes`: how its reports end, the first being the one our own runtime writes.
    `check(path)`: reads as little of a report as tells whether it is whole; never raises for a bad file.
    `validate(spec, where)`: the one verdict on a capture.
    """

    name: str
    suffixes: tuple[str, ...]
    check: Callable[[Path], Check]
    validate: Callable[[Asked, Where], Verdict]


def check_not_empty(path: Path) -> Check | None:
    """The part that all backends share: a `Check` when the file is missing or has no byte, else None."""
    try:
        size_bytes = path.stat().st_size
    except OSError as error:
        return Check(TRUNCATED, f"cannot be read: {error.strerror or error}")
    if size_bytes == 0:
        return Check(EMPTY, "the file has no content", {"size_bytes": 0})
    return None
