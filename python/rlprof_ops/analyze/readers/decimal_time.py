"""Microseconds as decimal text to int64 nanoseconds, a column at a time and without a float in between.

A float64 holds 4.4e12 µs (Kineto's three-month epoch) to half a nanosecond and 1.7e15 µs (UTC) only to a
quarter of a microsecond, so the digits themselves are read.
"""

from __future__ import annotations

from collections.abc import Sequence
from decimal import ROUND_HALF_UP, Decimal, InvalidOperation

import msgspec
import numpy as np

from rlprof_ops.analyze.columns import Ints

Buffer = bytes | memoryview | msgspec.Raw

INVALID = np.iinfo(np.int64).min
_MAX_NS = 1 << 62
_DIGITS = 18  # more may not fit an int64
_DOT, _NEWLINE = ord("."), ord("\n")


def nanoseconds(texts: Sequence[Buffer]) -> Ints:
    """(n,) nanoseconds of n JSON numbers given as bytes-like text in µs; `INVALID` where the text is no
    such number.
    """
    if not texts:
        return np.empty(0, np.int64)
    joined = b"\n".join(texts) + b"\n"
    raw = np.frombuffer(joined, np.uint8)
    ends = np.flatnonzero(raw == _NEWLINE)
    dots = np.flatnonzero(raw == _DOT)
    plain = joined.translate(None, b"0123456789.\n") == b"" and len(ends) == len(texts)
    if not plain:
        return np.array([_one(bytes(text)) for text in texts], np.int64)
    if len(dots) == len(ends) and bool((ends - dots == 4).all()):  # Kineto's own: three decimals everywhere
        lengths = np.diff(ends, prepend=-1) - 2
        if int(lengths.min()) > 3 and int(lengths.max()) <= _DIGITS:
            return _integers(joined.translate(None, b"."))
    lengths = np.diff(ends, prepend=-1) - 1
    row_of_dot = np.searchsorted(ends, dots)
    decimals = np.zeros(len(ends), np.int64)
    decimals[row_of_dot] = ends[row_of_dot] - dots - 1
    digits = lengths.copy()
    digits[row_of_dot] -= 1
    if (
        bool((np.diff(row_of_dot) == 0).any())
        or int(digits.max()) > _DIGITS
        or int(digits.min()) == 0
        or int(decimals.max()) > _DIGITS
    ):
        return np.array([_one(bytes(text)) for text in texts], np.int64)
    values = _integers(joined.translate(None, b"."))
    shift = 3 - decimals
    if (shift == 0).all():
        return values
    if int((digits + shift).max()) > _DIGITS:
        return np.array([_one(bytes(text)) for text in texts], np.int64)
    scaled: Ints = values * 10 ** np.maximum(shift, 0)
    fine = np.flatnonzero(shift < 0)
    if len(fine):
        divisor = 10 ** (-shift[fine])
        scaled[fine] = (values[fine] + divisor // 2) // divisor
    return scaled


def _integers(lines: bytes) -> Ints:
    values: Ints = np.fromstring(lines, np.int64, sep="\n")
    return values


def _one(text: bytes) -> int:
    """One number, exactly; any JSON number syntax."""
    try:
        exact = Decimal(text.decode("ascii").strip())
        if not exact.is_finite() or exact.adjusted() > 18:
            return INVALID
        value = int((exact * 1000).to_integral_value(ROUND_HALF_UP))
    except (InvalidOperation, UnicodeDecodeError, ValueError, OverflowError):
        return INVALID
    return value if -_MAX_NS < value < _MAX_NS else INVALID
