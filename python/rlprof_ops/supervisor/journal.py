"""The supervisor's own log: one line an event, with the seconds since the job began, and how long a phase
took.
"""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Iterator
from pathlib import Path


class Journal:
    """Writes to `<run folder>/logs/<name>.log` and, for what a person waits for, to the job's own output."""

    def __init__(self, path: Path, node: str, began: float) -> None:
        self._path = path
        self._node = node
        self._began = began
        self.phases_s: dict[str, float] = {}

    def note(self, text: str) -> None:
        """For the log alone."""
        line = f"[rlprof +{time.time() - self._began:7.2f}s {self._node}] {text}"
        with contextlib.suppress(OSError), open(self._path, "a", encoding="utf-8") as file:
            file.write(line + "\n")

    def say(self, text: str) -> None:
        """For the log and for the job's output."""
        self.note(text)
        print(f"[rlprof +{time.time() - self._began:.1f}s] {text}", file=sys.stderr, flush=True)

    @contextlib.contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Note how long the enclosed work took, also when it fails."""
        start = time.monotonic()
        try:
            yield
        finally:
            self.phases_s[name] = round(time.monotonic() - start, 3)
            self.note(f"{name.replace('_', ' ')}: {self.phases_s[name]:.2f} s")
