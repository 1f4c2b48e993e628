"""`when` of a capture: what has to be found in the running job for it to open by itself, and its budget."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from rlprof_ops.request.problems import shown

WHEN_KEYS = ("step_time", "phase", "rank", "throttle", "hang", "every", "at_most", "disk")
AT_MOST = 5
MOST_CAPTURES = 10_000
DECIMALS = 9
_LARGEST = 1e9
_LIMIT = re.compile(r"\s*>\s*([0-9]*\.?[0-9]+)\s*(?:[x*]\s*median|(ms|s|min)?)\s*", re.ASCII)
_RELATIVE = re.compile(r"[x*]\s*median\s*$")
_SECONDS = re.compile(r"\s*([0-9]*\.?[0-9]+)\s*(ms|s|min|h)?\s*", re.ASCII)
_BYTES = re.compile(r"\s*([0-9]*\.?[0-9]+)\s*(B|KiB|MiB|GiB|TiB)?\s*", re.ASCII)
UNIT_S = {"ms": 1e-3, "s": 1.0, "min": 60.0, "h": 3600.0}
_UNIT_BYTES = {"B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}


def plain(number: float) -> str:
    """Without an exponent, as all of a request's quantities are read."""
    return f"{number:.{DECIMALS}f}".rstrip("0").rstrip(".")


Complain = Callable[[str, str], None]  # key, what is wrong with its value


@dataclass(frozen=True)
class Limit:
    """`> 1.3 x median`, or `> 20 s` where `factor` is None."""

    factor: float | None
    seconds: float | None = None

    def holds(self, seconds: float, median_s: float) -> bool:
        if self.factor is not None:
            return median_s > 0 and seconds > self.factor * median_s
        return self.seconds is not None and seconds > self.seconds

    def __str__(self) -> str:
        number = self.seconds or 0.0 if self.factor is None else self.factor
        return f"> {plain(number)} {'s' if self.factor is None else 'x median'}"


@dataclass(frozen=True)
class When:
    """Any of these opens the capture for the next step; `at_most` and `disk_bytes` are what it may cost.

    Attributes:
        step_time: of the step, or of `phase` where that is named.
        phase: alone: this phase takes longer than its history allows.
        rank: "slow": a rank is slower than its peers for several steps.
        throttle: a GPU is slowed down by its hardware.
        hang_s: the step clock stands still for so long.
        every: every so many steps, on one rank after the other.
    """

    step_time: Limit | None = None
    phase: str | None = None
    rank: str | None = None
    throttle: bool = False
    hang_s: float | None = None
    every: int | None = None
    at_most: int = AT_MOST
    disk_bytes: int | None = None

    def to_dict(self) -> dict[str, Any]:
        """As the YAML has it; what is not asked is left out."""
        found: dict[str, Any] = {}
        if self.step_time is not None:
            found["step_time"] = str(self.step_time)
        for name, value in (
            ("phase", self.phase),
            ("rank", self.rank),
            ("throttle", self.throttle),
            ("hang", f"{self.hang_s:g}s" if self.hang_s else None),
            ("every", self.every),
        ):
            if value:
                found[name] = value
        found["at_most"] = self.at_most
        if self.disk_bytes:
            found["disk"] = f"{self.disk_bytes}B"
        return found

    def __str__(self) -> str:
        """As a flow of YAML has it: `rank: slow, at_most: 5`."""
        words = {name: "true" if value is True else value for name, value in self.to_dict().items()}
        return ", ".join(f"{name}: {value}" for name, value in words.items())


def parse(data: Mapping[str, Any], complain: Complain) -> When:
    """Check a `when` whose keys are known; what is wrong goes to `complain`, and its default counts."""
    found: dict[str, Any] = {}
    for key, read in _READERS.items():
        if key in data:
            try:
                name, value = read(data[key])
            except ValueError as error:
                complain(key, str(error))
            else:
                found[name] = value
    when = When(**found)
    asked = set(data) - {"at_most", "disk"}
    if not asked:
        complain("", f"when says nothing to wait for; write one of {', '.join(WHEN_KEYS[:6])}")
    return when


def _step_time(value: Any) -> tuple[str, Limit]:
    match = _LIMIT.fullmatch(value) if isinstance(value, str) else None
    number = round(float(match[1]) * UNIT_S[match[2] or "s"], DECIMALS) if match else 0.0
    if not 0 < number <= _LARGEST:
        raise ValueError(f"step_time {shown(value)} is no limit; write '> 1.3 x median' or '> 20 s'")
    if _RELATIVE.search(value):
        if number <= 1:
            raise ValueError(f"step_time {value!r} holds for ordinary steps; the factor must be above 1")
        return "step_time", Limit(number)
    return "step_time", Limit(None, number)


def _phase(value: Any) -> tuple[str, str]:
    if not isinstance(value, str) or not value.strip() or len(value) > 200 or not value.isprintable():
        raise ValueError(f"phase {value!r} is no name of a phase; write for instance generation")
    return "phase", value.strip()


def _rank(value: Any) -> tuple[str, str]:
    if value != "slow":
        raise ValueError(f"rank {value!r} is unknown; the only word is slow (ranks: chooses ranks)")
    return "rank", value


def _throttle(value: Any) -> tuple[str, bool]:
    if not isinstance(value, bool):
        raise ValueError(f"throttle must be true or false, not {value!r}")
    return "throttle", value


def _hang(value: Any) -> tuple[str, float]:
    seconds = _quantity(value, _SECONDS, UNIT_S, "s")
    if seconds is None or not 1 <= seconds <= 86_400:
        raise ValueError(f"hang {value!r} is no time from 1s to 24h; write for instance 300s")
    return "hang_s", seconds


def _count(name: str) -> Callable[[Any], tuple[str, int]]:
    def read(value: Any) -> tuple[str, int]:
        if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= MOST_CAPTURES:
            raise ValueError(f"{name} {value!r} must be a whole number from 1 to {MOST_CAPTURES}")
        return name, value

    return read


def _disk(value: Any) -> tuple[str, int]:
    size = _quantity(value, _BYTES, _UNIT_BYTES, "B")
    if size is None or not 1 << 20 <= size <= 1 << 60:
        raise ValueError(f"disk {shown(value)} is no size from 1MiB; write for instance 2GiB")
    return "disk_bytes", int(size)


def _quantity(value: Any, pattern: re.Pattern[str], units: Mapping[str, float], unit: str) -> float | None:
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return float(value)
    match = pattern.fullmatch(value) if isinstance(value, str) else None
    return None if match is None else float(match[1]) * units[match[2] or unit]


_READERS: dict[str, Callable[[Any], tuple[str, Any]]] = {
    "step_time": _step_time,
    "phase": _phase,
    "rank": _rank,
    "throttle": _throttle,
    "hang": _hang,
    "every": _count("every"),
    "at_most": _count("at_most"),
    "disk": _disk,
}
