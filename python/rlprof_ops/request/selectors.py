"""Which workers and ranks a capture means: `fnmatch` patterns and a list of ranks."""

from __future__ import annotations

import re
from collections.abc import Iterable
from fnmatch import fnmatchcase

from rlprof_ops.backends.contract import LEADERS

Ranks = tuple[int, ...] | None  # None: all; (): none


_PART_OF_A_SERVER = re.compile(r"(.+?)(?:_(?:dp|pp|tp)\d+)+")


def server_of(worker: str) -> str:
    """The server that an engine's inner worker belongs to, `rollout` of `rollout_tp1`; "" of any other."""
    found = _PART_OF_A_SERVER.fullmatch(worker)
    return found[1] if found else ""


def split_words(text: str) -> tuple[str, ...]:
    """The items of a comma string, stripped, without the empty ones (NeMo RL docs, "Pattern Format")."""
    return tuple(item.strip() for item in text.split(",") if item.strip())


def first_match(worker: str, patterns: Iterable[str]) -> str | None:
    """The first pattern that matches, as NeMo RL reports it ("matched pattern '*policy*'"). The process that
    leads the steps is matched under each of its names, an inner worker of an engine also under its server's.
    """
    names = LEADERS if worker in LEADERS else tuple(filter(None, (worker, server_of(worker))))
    return next((p for p in patterns if any(fnmatchcase(name, p) for name in names)), None)


def is_pattern(word: str) -> bool:
    """Whether it holds a wildcard, so that it can match more than its own text."""
    return any(character in word for character in "*?[")


def ranks_overlap(one: Ranks, other: Ranks) -> bool:
    if one == () or other == ():
        return False
    return one is None or other is None or not set(one).isdisjoint(other)


def patterns_surely_overlap(one: Iterable[str], other: Iterable[str]) -> str | None:
    """A pattern or name that both select whatever the workers are; None when that depends on the workers."""
    others = tuple(other)
    for pattern in one:
        for candidate in others:
            if pattern == candidate or (not is_pattern(candidate) and fnmatchcase(candidate, pattern)):
                return candidate
            if not is_pattern(pattern) and fnmatchcase(pattern, candidate):
                return pattern
    return None
