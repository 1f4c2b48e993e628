"""Numbers and near misses as messages say them: durations, sizes in binary units, "did you mean"."""

from __future__ import annotations

from collections.abc import Iterable

_TIMES = (
    ("d", 8.64e13, 3.6e14),
    ("h", 3.6e12, 6e12),
    ("min", 6e10, 1e12),
    ("s", 1e9, 1e9),
    ("ms", 1e6, 1e6),
    ("µs", 1e3, 1e3),
)  # unit, ns in it, used from so many ns on
_TRUTH = dict.fromkeys(("true", "1", "yes", "on"), True) | dict.fromkeys(("false", "0", "no", "off"), False)
_UNITS = (("TiB", 1 << 40), ("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10))


def duration(ns: float) -> str:
    """Three significant digits and the unit that suits, seconds up to 999: `12 ns`, `8.40 µs`, `312 ms`,
    `1.25 s`, `20.5 min`, `3.20 h`, `30.0 d`. The page's script has the same rule.
    """
    for unit, scale, least in _TIMES:
        if abs(ns) >= least * 0.9995:
            value = ns / scale
            digits = 0 if abs(value) >= 99.95 else 1 if abs(value) >= 9.995 else 2
            return f"{value:.{digits}f} {unit}"
    return f"{ns:.0f} ns"


def limit(seconds: float) -> str:
    """A bound that somebody set, as a duration without zeros after the point: `20 s`, `1.5 s`, `20 min`."""
    number, _, unit = duration(seconds * 1e9).partition(" ")
    return f"{number.rstrip('0').rstrip('.') if '.' in number else number} {unit}"


def size(count: float) -> str:
    """Bytes in binary units: `1.4 MiB`, `312 MiB`, `17 B`."""
    for unit, scale in _UNITS:
        if abs(count) >= scale:
            value = count / scale
            return f"{value:.{1 if abs(value) < 99.95 else 0}f} {unit}"
    return f"{count:.0f} B"


def truth(text: str) -> bool | None:
    """What a word for yes or no means, whatever the case of its letters; None for any other."""
    return _TRUTH.get(text.strip().lower())


def counted(count: int, noun: str) -> str:
    """`1 report`, `3 reports`."""
    return f"{count} {noun}{'' if count == 1 else 's'}"


def ranks_text(ranks: Iterable[int]) -> str:
    """`rank 3`, `ranks 0-6, 9`."""
    runs: list[list[int]] = []
    for rank in sorted(ranks):
        if runs and runs[-1][1] == rank - 1:
            runs[-1][1] = rank
        else:
            runs.append([rank, rank])
    parts = [str(a) if a == b else f"{a}-{b}" if b > a + 1 else f"{a}, {b}" for a, b in runs]
    return f"rank{'' if sum(b - a + 1 for a, b in runs) == 1 else 's'} {', '.join(parts)}"


def closest(word: str, allowed: Iterable[str], cutoff: float = 0.6) -> str | None:
    """The allowed word that a misspelt one most likely means, whatever the case of its letters."""
    from difflib import get_close_matches  # only needed once something is wrong

    by_folded = {name.lower(): name for name in reversed(list(allowed))}
    near = get_close_matches(word.strip().lower(), list(by_folded), n=1, cutoff=cutoff)
    return by_folded[near[0]] if near else None


def did_you_mean(word: str, allowed: Iterable[str], cutoff: float = 0.6) -> str:
    """` Did you mean 'x'?`, or nothing when no allowed word is close."""
    near = closest(word, allowed, cutoff)
    return "" if near is None else f" Did you mean {near!r}?"
