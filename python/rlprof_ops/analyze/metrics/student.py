"""Student's t distribution, as far as a straggler's verdict needs it and without SciPy."""

from __future__ import annotations

from functools import cache

import numpy as np

_POINTS = 200_001
_MOST_FREEDOM = 10_000  # beyond, the distribution is the normal one for our purposes


@cache
def quantile(probability: float, freedom: float) -> float:
    """The value that Student's t with `freedom` degrees stays below with `probability` (0.5 to 1, exclusive).

    With t = sqrt(freedom) tan(a) the density becomes cos(a)^(freedom - 1), which is summed over a.

    Raises:
        ValueError: `probability` or `freedom` is outside of what is said here.
    """
    if not 0.5 < probability < 1 or freedom < 1:
        raise ValueError(
            f"probability {probability} and {freedom} degrees of freedom: give 0.5 < probability < 1 and at"
            " least 1 degree"
        )
    freedom = min(freedom, _MOST_FREEDOM)
    angle = np.linspace(0, np.pi / 2, _POINTS)
    density = np.cos(angle) ** (freedom - 1)
    tail = np.concatenate(
        ([0.0], np.cumsum((density[::-1][1:] + density[::-1][:-1]) / 2))
    )  # from the far end inwards
    wanted = (1 - probability) * 2 * tail[-1]
    found = np.interp(wanted, tail, angle[::-1])
    return float(np.sqrt(freedom) * np.tan(found))
