"""The one way to wait in the tests: look again and again until it is so, or the time is over."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

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
    import pytest  # the sandbox, which waits too, also runs without it

    began = time.monotonic()
    if not (found := poll(look, seconds, pause_s, unless=unless)):
        spent_s = time.monotonic() - began
        pytest.fail(f"not within {spent_s:.1f} s: {say() if callable(say) else say}", pytrace=True)
    return found


def poll(
    look: Callable[[], _T],
    seconds: float,
    pause_s: float = 0.05,
    enough: Callable[[_T], object] = bool,
    unless: Callable[[], object] = lambda: False,
) -> _T:
    """The first value of `look` that is `enough`; the last one when time is over or `unless` holds."""
    until = time.monotonic() + seconds
    while not enough(found := look()) and time.monotonic() <= until and not unless():
        time.sleep(pause_s)
    return found
