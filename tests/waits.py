"""The one way to wait for something in a test: look again and again, and fail with what was awaited."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

import pytest

_T = TypeVar("_T")


def wait_until(
    look: Callable[[], _T],
    seconds: float = 60,
    say: Callable[[], object] | str = "",
    pause_s: float = 0.05,
    unless: Callable[[], object] = lambda: False,
) -> _T:
    """The first true value of `look`; fails the test when none comes in time, at once when `unless` holds.

    Args:
        seconds: generous, since a machine may be busy; a test that passes does not spend them.
        say: what to tell then, or what makes it.
    """
    until = time.monotonic() + seconds
    while not (found := look()):
        if time.monotonic() > until or unless():
            spent_s = seconds - until + time.monotonic()
            pytest.fail(f"not within {spent_s:.1f} s: {say() if callable(say) else say}", pytrace=True)
        time.sleep(pause_s)
    return found
