"""A pause that a person may end by a key."""

from __future__ import annotations

import os
import select
import sys
import termios
import time
import tty
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def waiting_for_q() -> Iterator[Callable[[float], bool]]:
    """Give `pressed(seconds)`: wait so long at most, and say whether q was typed. The terminal is as before
    afterwards; without one it only waits.
    """
    if not sys.stdin.isatty():
        yield lambda seconds: bool(select.select([], [], [], seconds)[0])
        return
    terminal = sys.stdin.fileno()
    before = termios.tcgetattr(terminal)

    def pressed(seconds: float) -> bool:
        until = time.monotonic() + seconds
        while select.select([terminal], [], [], max(0.0, until - time.monotonic()))[0]:
            keys = os.read(terminal, 64)
            if not keys or b"q" in keys.lower():
                return True
        return False

    try:
        tty.setcbreak(terminal)
        yield pressed
    finally:
        termios.tcsetattr(terminal, termios.TCSADRAIN, before)
