"""`at`, `after`, `tokens` and `for` of a capture: the part of each of its steps that a window holds."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from rlprof_ops.request.problems import shown
from rlprof_ops.request.when import DECIMALS, UNIT_S, plain

LONGEST_S = 7 * 86_400.0
_TIME = re.compile(r"([0-9]*\.?[0-9]+)\s*(ms|s|min|h)", re.ASCII)
SHARE_TEXT = r"([0-9]*\.?[0-9]+)\s*%"
TOKENS_TEXT = r"([0-9]{1,9}):([0-9]{0,9})"
TIMES = "a number with ms, s, min or h"


@dataclass(frozen=True)
class StepPart:
    """A window that opens `after_s` after its step, or a phase of it, has begun, and is open for `length_s`;
    None: until the step ends. Or one that opens when `done` percent of the step's requests are, or that is
    open while the longest answer of the step has from `tokens[0]` to `tokens[1]` tokens.
    """

    after_s: float = 0.0
    phase: str | None = None
    length_s: float | None = None
    done: float | None = None
    tokens: tuple[int, int | None] | None = None

    @property
    def counts(self) -> bool:
        """It needs somebody who counts the requests of the job's engines."""
        return self.done is not None or self.tokens is not None

    @property
    def begins_with(self) -> str | None:
        """What has to be told before it opens, as phases are; None: the step's begin alone."""
        if self.tokens is not None:
            return f"token {self.tokens[0]}"
        return self.phase if self.done is None else f"{plain(self.done)}% of the requests"

    @property
    def ends_with(self) -> str | None:
        """What closes it once it is told."""
        return f"token {self.tokens[1]}" if self.tokens is not None and self.tokens[1] is not None else None

    @property
    def at(self) -> str:
        """When it opens: `30s`, `generation+60s`, `90% of the requests`, `token 2000`."""
        name = self.begins_with
        return (name if self.counts and name else "") or "+".join(filter(None, (name, _text(self.after_s))))

    @property
    def end(self) -> str:
        """When it closes."""
        return self.ends_with or (f"{self.at}+{self.length}" if self.length else "its end")

    @property
    def length(self) -> str | None:
        return None if self.length_s is None else _text(self.length_s)

    def __str__(self) -> str:
        to = f"to {self.ends_with}" if self.ends_with else f"for {self.length or 'the rest of the step'}"
        return f"{self.at} {to}"

    def to_dict(self) -> dict[str, str]:
        """As a request has it."""
        words = {"at": self.at}
        if self.tokens is not None:
            words = {"tokens": f"{self.tokens[0]}:{self.tokens[1] or ''}"}
        elif self.done is not None:
            words = {"after": f"{plain(self.done)}%"}
        return words if self.length is None else {**words, "for": self.length}


def read_at(value: Any) -> dict[str, Any]:
    """`30s`, `generation`, `generation+60s`, as fields. Raises ValueError with the message for the user."""
    if isinstance(value, str) and "\n" not in value and len(value) <= 200:
        name, plus, after = (part.strip() for part in value.rpartition("+"))
        seconds = _seconds(after)
        if seconds is not None and (_is_phase(name) or not plus):
            return {"after_s": seconds, "phase": name or None}
        if not plus and _is_phase(after):
            return {"phase": after}
    raise ValueError(
        f"at {shown(value)} is no point in a step; write a time from its begin, such as 30s, or from the"
        f" begin of a phase, such as generation+60s: the time is {TIMES}, up to"
        f" {_text(LONGEST_S)}{_meant(value)}"
    )


def read_length(value: Any) -> dict[str, Any]:
    """`20s`, as a field. Raises ValueError with the message for the user."""
    seconds = _seconds(value)
    if seconds:
        return {"length_s": seconds}
    raise ValueError(
        f"for {shown(value)} is no length of a window; write {TIMES}, above 0 and up to {_text(LONGEST_S)},"
        f" such as 20s{_meant(value)}"
    )


def read_after(value: Any) -> dict[str, Any]:
    """`90%`, as a field. Raises ValueError with the message for the user."""
    match = re.fullmatch(SHARE_TEXT, value.strip(), re.ASCII) if isinstance(value, str) else None
    share = round(float(match[1]), DECIMALS) if match else 0.0
    if 0 < share <= 100:
        return {"done": share}
    meant = f". Did you mean 'at: {value.strip()}'?" if _seconds(value) is not None else ""
    raise ValueError(
        f"after {shown(value)} is no share of a step's requests; write a number above 0 and up to 100 with %,"
        f" such as 90%{meant}"
    )


def read_tokens(value: Any) -> dict[str, Any]:
    """`2000:2200`, `2000:`, as a field. Raises ValueError with the message for the user."""
    match = re.fullmatch(TOKENS_TEXT, value.strip(), re.ASCII) if isinstance(value, str) else None
    first, stop = (int(match[1]), int(match[2] or 0) or None) if match else (0, None)
    if first and (stop is None or first < stop):
        return {"tokens": (first, stop)}
    raise ValueError(
        f"tokens {shown(value)} is no part of an answer; write its first token and its stop, such as"
        " 2000:2200, from 1 and in that order"
    )


READERS = {"at": read_at, "after": read_after, "tokens": read_tokens, "for": read_length}


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
    seconds = round(float(match[1]) * UNIT_S[match[2]], DECIMALS) if match else None
    return seconds if seconds is not None and seconds <= LONGEST_S else None


def _text(seconds: float) -> str:
    return f"{plain(seconds * 1e3)}ms" if 0 < seconds < 1 else f"{plain(seconds)}s"
