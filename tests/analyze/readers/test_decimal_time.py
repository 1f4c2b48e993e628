"""Decimal microseconds to integer nanoseconds, against exact decimal arithmetic."""

from __future__ import annotations

from decimal import ROUND_HALF_UP, Decimal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

np = pytest.importorskip("numpy")

from rlprof_ops.analyze.readers.decimal_time import INVALID, nanoseconds  # noqa: E402

NUMBERS = st.decimals(min_value=0, max_value=Decimal(10) ** 15, allow_nan=False, places=None).map(
    lambda d: format(d, "f")
)


def exact(text: str) -> int:
    return int((Decimal(text) * 1000).to_integral_value(ROUND_HALF_UP))


@settings(deadline=None)  # of a busy machine
@given(st.lists(NUMBERS, max_size=20))
def test_any_decimals_are_read_exactly(texts: list[str]) -> None:
    expected = [exact(text) for text in texts]
    assert nanoseconds([text.encode() for text in texts]).tolist() == expected


@settings(deadline=None)  # of a busy machine
@given(st.lists(st.integers(0, 10**18).map(lambda n: f"{n // 1000}.{n % 1000:03d}"), max_size=20))
def test_kineto_layout_is_read_exactly(texts: list[str]) -> None:
    assert nanoseconds([text.encode() for text in texts]).tolist() == [
        int(text.replace(".", "")) for text in texts
    ]


def test_a_float_would_lose_what_is_kept_here() -> None:
    assert nanoseconds([b"1682725898240982.123"]).tolist() == [1682725898240982123]


@pytest.mark.parametrize(
    "text", [b"", b'"12"', b"null", b"true", b"[1]", b"1e400", b"9" * 40, b"NaN", b"1.2.3"]
)
def test_what_is_no_time_is_marked(text: bytes) -> None:
    assert nanoseconds([b"1.5", text]).tolist() == [1500, INVALID]


def test_other_number_syntax() -> None:
    assert nanoseconds([b"-3", b"1e3", b"2.5E-1"]).tolist() == [-3000, 1_000_000, 250]
