"""`at` and `for` of a capture: the part of each of its steps that a window holds."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from rlprof_ops.request.problems import shown
from rlprof_ops.request.when import UNIT_S

LONGEST_S = 7 * 86_400.0
_TIME = re.compile(r"([0-9]*\.?[0-9]+)\s*(ms|s|min|h)", re.ASCII)
TIMES = "a number with ms, s, min or h"


@dataclass(frozen=True)
class StepPart:
    """A window that opens `after_s` after its step, or a phase of it, has begun, and is open for `length_s`;
    None: until the step ends.
    """

    after_s: float = 0.0
    phase: str | None = None
    length_s: float | None = None

    @property
    def at(self) -> str:
        """As a request has it: `30s`, `generation+60s`."""
        return f"{self.phase}+{_text(self.after_s)}" if self.phase else _text(self.after_s)

    @property
    def length(self) -> str | None:
        return None if self.length_s is None else _text(self.length_s)

    def __str__(self) -> str:
        return f"{self.at} for {self.length or 'the rest of the step'}"


def read_at(value: Any) -> StepPart:
    """`30s`, `generation`, `generation+60s`. Raises ValueError with the message for the user."""
    if isinstance(value, str) and "\n" not in value and len(value) <= 200:
        name, plus, after = (part.strip() for part in value.rpartition("+"))
        seconds = _seconds(after)
        if seconds is not None and (_is_phase(name) or not plus):
            return StepPart(seconds, name or None)
        if not plus and _is_phase(after):
            return StepPart(0.0, after)
    raise ValueError(
        f"at {shown(value)} is no point in a step; write a time from its begin, such as 30s, or from the"
        f" begin of a phase, such as generation+60s: the time is {TIMES}, up to"
        f" {_text(LONGEST_S)}{_meant(value)}"
    )


def read_length(value: Any) -> float:
    """`20s`. Raises ValueError with the message for the user."""
    seconds = _seconds(value)
    if seconds:
        return seconds
    raise ValueError(
        f"for {shown(value)} is no length of a window; write {TIMES}, above 0 and up to {_text(LONGEST_S)},"
        f" such as 20s{_meant(value)}"
    )


def _is_phase(name: str) -> bool:
    return name.isprintable() and (name[:1].isalpha() or name[:1] == "_")


def _meant(value: Any) -> str:
    """What a value without its unit, or with a word for it, may stand for."""
    bare = re.fullmatch(
        r"(.*?[+]?\s*)([0-9]*\.?[0-9]+)\s*(|sec|secs|seconds?|mins|minutes?|m|hours?|msecs?|milliseconds?)",
        str(value).strip(),
        re.ASCII,
    )
    if bare is None or isinstance(value, bool):
        return ""
    unit = "ms" if bare[3].startswith("mil") or bare[3].startswith("ms") else bare[3][:1] or "s"
    return f". Did you mean '{bare[1]}{bare[2]}{'min' if unit == 'm' else unit}'?"


def _seconds(value: Any) -> float | None:
    match = _TIME.fullmatch(value.strip()) if isinstance(value, str) else None
    seconds = float(match[1]) * UNIT_S[match[2]] if match else None
    return seconds if seconds is not None and seconds <= LONGEST_S else None


def _text(seconds: float) -> str:
    return f"{seconds * 1e3:.10g}ms" if 0 < seconds < 1 else f"{seconds:.10g}s"
