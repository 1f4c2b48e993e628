"""`steps_from` of a request: by which lines of the driver's output the job's steps are known."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from rlprof_ops.request.problems import nearest

STEPS_FROM_KEYS = ("log", "when")
WHEN_OF_A_LINE = ("ends", "begins")
EXAMPLE = r"step (\d+)"
NAMED = "step"  # of several groups the one that counts
_MOST_PATTERN = 500
_DIGITS = re.compile(r"(?:(?:\\d|\[0-9\]|\[1-9\]|[0-9])(?:[*+?]|\{\d*,?\d*\})?[+?]?)+")

Complain = Callable[[str, str], None]  # key, what is wrong with its value


@dataclass(frozen=True)
class StepsFrom:
    """A line of the driver's output in which `log` is found with number N: step N has ended, and N + 1
    begins, or, with `when` "begins", step N begins.
    """

    log: str
    when: str = WHEN_OF_A_LINE[0]

    def __str__(self) -> str:
        return f"a line of the driver's output with '{self.log}', which {self.when} its step"

    def to_dict(self) -> dict[str, str]:
        """As the YAML has it."""
        return {"log": self.log} | ({"when": self.when} if self.when != WHEN_OF_A_LINE[0] else {})


def group_of(pattern: re.Pattern[str]) -> int:
    """The number of the group that holds the step."""
    return pattern.groupindex.get(NAMED, 1)


def parse_rule(data: Mapping[str, Any], complain: Complain, elsewhere: bool = False) -> StepsFrom | None:
    """Check a rule whose keys are known; what is wrong goes to `complain`. `elsewhere`: it was checked by
    another Python, whose expressions may know more.
    """
    log, when = data.get("log"), data.get("when", WHEN_OF_A_LINE[0])
    if when not in WHEN_OF_A_LINE:
        near = nearest(when, WHEN_OF_A_LINE) if isinstance(when, str) else ""
        complain("when", f"when {when!r} is unknown; allowed are {' or '.join(WHEN_OF_A_LINE)}.{near}")
        when = WHEN_OF_A_LINE[0]
    if not isinstance(log, str) or not 0 < len(log) <= _MOST_PATTERN or not log.isprintable():
        complain(
            "log", f"log must be one line, a regular expression such as '{EXAMPLE}', not {str(log)[:60]!r}"
        )
        return None
    wrong = "" if elsewhere else _unsupported(log)
    if wrong:
        complain("log", f"log '{log}' {wrong}")
        return None
    return StepsFrom(log, when)


def _unsupported(log: str) -> str:
    try:
        pattern = re.compile(log)
    except (re.error, RecursionError, OverflowError) as error:
        return f"is no regular expression: {error}; write for instance '{EXAMPLE}'"
    if not pattern.groups:
        return f"has no group: put what matches the step's number in parentheses, as in '{EXAMPLE}'"
    if pattern.groups > 1 and NAMED not in pattern.groupindex:
        return (
            f"has {pattern.groups} groups: keep one, write the others as (?:…), or name the one that holds"
            f" the step: (?P<{NAMED}>\\d+)"
        )
    inside = _group_text(log, group_of(pattern))
    if not _DIGITS.fullmatch(inside):
        return f"has a group that is not a number: ({inside}) has to match digits alone, as in '{EXAMPLE}'"
    return ""


def _group_text(log: str, number: int) -> str:
    """What stands between the parentheses of a capturing group of an expression that compiles."""
    opened: list[tuple[int, int]] = []  # the group's number, 0 for none, and where its text begins
    count, place, in_class = 0, 0, -1
    while place < len(log):
        character = log[place]
        if character == "\\":
            place += 1
        elif in_class >= 0:
            if character == "]" and place > in_class:
                in_class = -1
        elif character == "[":
            in_class = place + (2 if log[place + 1 : place + 2] == "^" else 1)
            place = in_class - 1
            in_class += log[in_class : in_class + 1] == "]"
        elif character == "(":
            name = re.match(r"\(\?P<\w+>", log[place:])
            captures = name is not None or log[place + 1 : place + 2] != "?"
            count += captures
            opened.append((count if captures else 0, place + (len(name[0]) if name else 1)))
        elif character == ")":
            group, begin = opened.pop()
            if group == number:
                return log[begin:place]
        place += 1
    return ""
