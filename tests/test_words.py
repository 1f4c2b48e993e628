"""Durations, sizes and near misses as messages say them."""

from __future__ import annotations

import re
from pathlib import Path

from rlprof_ops.words import closest, counted, did_you_mean, duration, limit, size

PACKAGE = Path(__file__).parents[1] / "python" / "rlprof_ops"
# A number before a time or size unit that its line formats itself. The demo's own table is a trainer's.
OWN_NOTATION = re.compile(
    r"\{[^{}]*:[^{}]*[fg]\} ?(?:ns|us|µs|ms|s|min|h|d|[KMGT]i?B)\b|toFixed\(\d\) \+ \" (?:ns|µs|ms|s)\""
)


def test_durations_have_three_digits_and_the_unit_that_suits():
    seconds = (
        0,
        12e-9,
        8.4e-6,
        999.4e-6,
        0.312,
        1.25,
        59.96,
        312,
        999.4,
        1230,
        5940,
        11_520,
        3e5,
        2.6e6,
        -0.5,
    )
    assert [duration(s * 1e9) for s in seconds] == [
        "0 ns", "12 ns", "8.40 µs", "999 µs", "312 ms", "1.25 s", "60.0 s", "312 s", "999 s", "20.5 min",
        "99.0 min", "3.20 h", "83.3 h", "30.1 d", "-500 ms",
    ]  # fmt: skip


def test_a_bound_is_a_duration_without_zeros_after_the_point():
    assert [limit(s) for s in (1, 1.5, 20, 120, 300, 1200, 0.2)] == [
        "1 s", "1.5 s", "20 s", "120 s", "300 s", "20 min", "200 ms",
    ]  # fmt: skip


def test_nobody_has_a_notation_of_its_own():
    strays = [
        f"{file.relative_to(PACKAGE)}: {line.strip()}"
        for file in sorted([*PACKAGE.rglob("*.py"), *PACKAGE.rglob("*.js")])
        if file.name not in ("words.py", "when.py", "step_part.py")  # the latter two: as a request asks it
        for line in file.read_text().splitlines()
        if OWN_NOTATION.search(line) and "[rlprof +" not in line
    ]
    assert strays == []


def test_sizes_are_in_binary_units():
    counts = (0, 1023, 1536, 150 << 20, 5 << 30, 3 << 40, -2048)
    assert [size(count) for count in counts] == [
        "0 B", "1023 B", "1.5 KiB", "150 MiB", "5.0 GiB", "3.0 TiB", "-2.0 KiB",
    ]  # fmt: skip


def test_a_noun_has_its_number():
    assert [counted(n, "report") for n in (0, 1, 2)] == ["0 reports", "1 report", "2 reports"]


def test_the_nearest_word_keeps_its_own_letters():
    assert closest("base_log_dri", ["PORT", "BASE_LOG_DIR"]) == "BASE_LOG_DIR"
    assert did_you_mean("nsigth", ("nsight", "torch")) == " Did you mean 'nsight'?"
    assert did_you_mean("x", ("nsight", "torch")) == ""
