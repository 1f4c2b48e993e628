"""A progress bar where a person waits: one line on a terminal, nothing in a file."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TextIO

import click

Progress = Callable[[int, int, str], None]


@contextmanager
def bar(stream: TextIO, what: str) -> Iterator[Progress]:
    """Gives `progress(done, total, what)`; draws nothing when `stream` is no terminal.

    Args:
        what: said before the bar.
    """
    if not stream.isatty():
        yield lambda done, total, item: None
        return
    with click.progressbar(length=0, label=what, file=stream, show_pos=True) as drawn:

        def progress(done: int, total: int, item: str) -> None:
            drawn.length = total
            drawn.update(done - drawn.pos)

        yield progress
