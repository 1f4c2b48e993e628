"""The supervisor's own log, and how long each phase of the job took."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from rlprof_ops.host.background import BackgroundWriter
from rlprof_ops.host.contained_dir import PinnedDir
from rlprof_ops.words import duration


class Journal:
    """The supervisor's own log: one line an event, with the seconds since the job began, and how long a phase
    took.

    Writes to `<run folder>/logs/<name>.log`, by a thread of its own, to `logs/supervisor.log` of the node
    folder, and, for what a person waits for, to the job's own output.
    """

    def __init__(
        self,
        path: Path,
        node: str,
        began: float,
        local: Path | None = None,
        run: PinnedDir | None = None,
    ) -> None:
        if run is not None:
            run.say = self.say
        self.writer = BackgroundWriter(run)
        self.phases_s: dict[str, float] = {}
        self._path, self._local = path, local
        self._node = node
        self._began = began

    def note(self, text: str) -> None:
        """For the log alone."""
        line = f"[rlprof +{time.time() - self._began:7.2f}s {self._node}] {text}\n".encode(errors="replace")
        if self._local is not None:
            with contextlib.suppress(OSError), open(self._local, "ab", buffering=0) as file:
                file.write(line)
        self.writer.append(self._path, line)

    def say(self, text: str) -> None:
        """For the log and for the job's output."""
        self.note(text)
        with contextlib.suppress(OSError, ValueError):  # of a terminal that is gone, of a full disk
            print(f"[rlprof +{time.time() - self._began:.1f}s] {text}", file=sys.stderr, flush=True)

    @contextlib.contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Note how long the enclosed work took, also when it fails."""
        start = time.monotonic()
        try:
            yield
        finally:
            self.phases_s[name] = round(time.monotonic() - start, 3)
            self.note(f"{name.replace('_', ' ')}: {duration(self.phases_s[name] * 1e9)}")
