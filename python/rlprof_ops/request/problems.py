"""What is wrong with a request: every problem with the place it came from and the nearest right word."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from rlprof_ops.errors import UsageError
from rlprof_ops.words import did_you_mean


@dataclass(frozen=True)
class Problem:
    """One thing to fix. `origin` is a file's line:column, a variable or a flag; empty when the value stood
    alone.
    """

    message: str
    origin: str = ""

    def __str__(self) -> str:
        return f"{self.origin}: {self.message}" if self.origin else self.message


class RequestError(UsageError):
    """A request that cannot be carried out. `problems` holds all that was found, in reading order."""

    def __init__(self, problems: Iterable[Problem | str] | str) -> None:
        if isinstance(problems, str):
            problems = [problems]
        self.problems: tuple[Problem, ...] = tuple(
            p if isinstance(p, Problem) else Problem(p) for p in problems
        )
        super().__init__(str(self))

    def __str__(self) -> str:
        if len(self.problems) == 1:
            return str(self.problems[0])
        lines = [f"{len(self.problems)} problems in the request:"]
        return "\n".join(lines + [f"  {problem}" for problem in self.problems])

    def __reduce__(self) -> tuple[type[RequestError], tuple[tuple[Problem, ...]]]:
        return (type(self), (self.problems,))  # crosses Ray's process boundary


def nearest(word: str, allowed: Sequence[str], aliases: dict[str, str] | None = None) -> str:
    """` Did you mean 'x'?`, or nothing when no allowed word is close. `aliases` are other tools' words for
    ours.
    """
    folded = word.strip().lower()
    if aliases and folded in aliases:
        return f" Did you mean {aliases[folded]!r}?"
    return did_you_mean(word, allowed, cutoff=0.5)


def numbers_of_range(text: str) -> list[int]:
    """What `0-3` or `0:4` means where numbers were wanted: 0, 1, 2, 3. Empty for another text."""
    found = re.fullmatch(r"\s*(\d{1,4})\s*(-|:)\s*(\d{1,4})\s*", text)
    if found is None:
        return []
    numbers = range(int(found[1]), int(found[3]) + (found[2] == "-"))
    return list(numbers) if len(numbers) <= 64 else []


def words(allowed: Iterable[str]) -> str:
    """`a, b or c`, for messages."""
    items = list(allowed)
    return items[0] if len(items) == 1 else f"{', '.join(items[:-1])} or {items[-1]}"


def shown(value: object, limit: int = 60) -> str:
    """A value as it stands in a message: quoted, on one line, cut when long."""
    try:
        text = repr(value) if isinstance(value, str) else ascii(value)
    except (ValueError, RecursionError):  # an int of thousands of digits, a list that holds itself
        text = f"this {type(value).__name__}"
    return text if len(text) <= limit else text[: limit - 1] + "…"
