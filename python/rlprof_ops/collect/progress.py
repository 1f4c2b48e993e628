"""A progress bar where a person waits: one line on a terminal, nothing in a file."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TextIO

_REDRAW_S = 0.1


@contextmanager
def bar(
    stream: TextIO, *, clock: Callable[[], float] = time.monotonic
) -> Iterator[Callable[[int, int, str], None]]:
    """Gives `progress(done, total, what)`; draws nothing when `stream` is no terminal, and clears its line
    at the end.
    """
    if not stream.isatty():
        yield lambda done, total, what: None
        return
    started = clock()
    drawn = [0.0]

    def progress(done: int, total: int, what: str) -> None:
        now = clock()
        if now - drawn[0] < _REDRAW_S and done < total:
            return
        drawn[0] = now
        stream.write("\r" + line(done, total, now - started, shutil.get_terminal_size().columns) + "\x1b[K")
        stream.flush()

    try:
        yield progress
    finally:
        stream.write("\r\x1b[K")
        stream.flush()


def line(done: int, total: int, elapsed_s: float, width: int) -> str:
    """`[#####     ] 512/4096 reports, 12 s left`; before the first one is there, how long one has waited."""
    left = ""
    if elapsed_s > 1:
        left = f", {elapsed_s / done * (total - done):.0f} s left" if done else f", {elapsed_s:.0f} s so far"
    text = f" {done}/{total} reports{left}"
    room = max(10, min(40, width - len(text) - 3))
    full = room * done // max(total, 1)
    return f"[{'#' * full}{' ' * (room - full)}]{text}"
