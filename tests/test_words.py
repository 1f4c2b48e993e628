"""Sizes and near misses as messages say them."""

from __future__ import annotations

from rlprof_ops.words import closest, did_you_mean, size


def test_sizes_are_in_binary_units():
    counts = (0, 1023, 1536, 150 << 20, 5 << 30, 3 << 40, -2048)
    assert [size(count) for count in counts] == [
        "0 B", "1023 B", "1.5 KiB", "150 MiB", "5.0 GiB", "3.0 TiB", "-2.0 KiB",
    ]  # fmt: skip


def test_the_nearest_word_keeps_its_own_letters():
    assert closest("base_log_dri", ["PORT", "BASE_LOG_DIR"]) == "BASE_LOG_DIR"
    assert did_you_mean("nsigth", ("nsight", "torch")) == " Did you mean 'nsight'?"
    assert did_you_mean("x", ("nsight", "torch")) == ""
