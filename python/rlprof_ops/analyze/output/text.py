"""Numbers as people read them: durations, shares and sizes, each with its unit."""

from __future__ import annotations


def duration(ns: float) -> str:
    """Three significant digits and the unit that suits: "1.25 s", "312 ms", "8.4 µs", "12 ns"."""
    for unit, scale in (("s", 1e9), ("ms", 1e6), ("µs", 1e3)):
        if abs(ns) >= scale * 0.9995:
            value = ns / scale
            digits = 0 if abs(value) >= 99.95 else 1 if abs(value) >= 9.995 else 2
            return f"{value:.{digits}f} {unit}"
    return f"{ns:.0f} ns"


def percent(share: float) -> str:
    return f"{share * 100:.{0 if share >= 0.0995 else 1}f} %"


def size(count: float) -> str:
    """Bytes in binary units."""
    for unit, scale in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if abs(count) >= scale:
            return f"{count / scale:.{1 if count / scale < 100 else 0}f} {unit}"
    return f"{count:.0f} B"
