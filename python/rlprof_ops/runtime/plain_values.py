"""What a program hands to a profiler, as plain values: steps and ranks of numpy or torch, names that are no
strings. Nothing here raises, since the same call does nothing where nothing is asked."""

from __future__ import annotations

import operator
from typing import SupportsIndex, SupportsInt, cast

_MOST_BITS = 62  # what events and mapped files hold, its negative too


def whole_number(value: object) -> int | None:
    """The whole number that `value` is: an integer of any library, a tensor of one element, a float without a
    fraction, decimal digits. None for what is none, or is too large to be told.
    """
    number: int | None
    try:
        number = operator.index(cast(SupportsIndex, value))
    except Exception:
        number = _equal_to(value)
    return number if number is not None and number.bit_length() <= _MOST_BITS else None


def _equal_to(value: object) -> int | None:
    try:
        number = int(cast(SupportsInt, value))
        return number if isinstance(value, str) or number == value else None
    except Exception:
        return None


def plain_name(name: object) -> str:
    """The text of `name`: of a string its own, of bytes theirs, of anything else what `str` makes of it."""
    try:
        if isinstance(name, str):
            return str.__str__(name)  # a member of an enumeration of strings may say something else of itself
        return name.decode("utf-8", "replace") if isinstance(name, bytes) else str(name)
    except Exception:
        return type(name).__name__
