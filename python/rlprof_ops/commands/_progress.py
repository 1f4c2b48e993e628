"""A progress bar where a person waits: one line on a terminal, nothing in a file."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TextIO

import click

from rlprof_ops.words import limit

Progress = Callable[[int, int, str], None]


@contextmanager
def bar(stream: TextIO, what: str) -> Iterator[Progress]:
    """Gives `progress(done, total, what)`; draws nothing when `stream` is no terminal.

    Until the first item is done there is no estimate: the bar says how long one has waited.

    Args:
        what: said before the bar.
    """
    if not stream.isatty():
        yield lambda done, total, item: None
        return
    began = time.monotonic()
    finished = 0

    def waited(_: str | None) -> str:
        return "" if finished else f"{limit(max(1, round(time.monotonic() - began)))} so far"

    with click.progressbar(length=0, label=what, file=stream, show_pos=True, item_show_func=waited) as drawn:

        def progress(done: int, total: int, item: str) -> None:
            nonlocal finished
            finished = done
            drawn.length = total
            drawn.update(done - drawn.pos)
            drawn.render_progress()

        yield progress
