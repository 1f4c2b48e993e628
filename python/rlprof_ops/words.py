"""Numbers and near misses as messages say them: sizes in binary units, "did you mean"."""

from __future__ import annotations

from collections.abc import Iterable

_UNITS = (("TiB", 1 << 40), ("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10))


def size(count: float) -> str:
    """Bytes in binary units: `1.4 MiB`, `312 MiB`, `17 B`."""
    for unit, scale in _UNITS:
        if abs(count) >= scale:
            value = count / scale
            return f"{value:.{1 if abs(value) < 99.95 else 0}f} {unit}"
    return f"{count:.0f} B"


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
