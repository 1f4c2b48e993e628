"""The request's `output_dir`: a copy of every finished report, whoever has opened its window."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path

from rlprof_ops.window.reason import reason_of
from rlprof_ops.window.report_file import mirror
from rlprof_ops.words import limit

COPIES_S = 20.0  # for copies that are under way when a process, or a node's windows, end


class OutputDir:
    """Copies reports beside the training: storage that hangs keeps no step waiting, and the end only so long.

    `path` "": the request names no folder, and nothing is copied.
    """

    def __init__(self, path: str, say: Callable[[str], None]) -> None:
        self.path = path
        self._say = say
        self._copying: list[threading.Thread] = []

    def copy(self, final: Path, backend: str, worker: str, rank: int) -> None:
        """Copy a report that is in its place, on a thread of its own."""
        if not self.path:
            return
        thread = threading.Thread(
            target=self._copy, args=(final, backend, worker, rank), name="rlprof-output-dir", daemon=True
        )
        try:
            thread.start()
        except RuntimeError:  # no new threads at interpreter exit
            self._copy(final, backend, worker, rank)
        else:
            self._copying.append(thread)

    def finish(self) -> None:
        """Wait a while for the copies that are under way."""
        until = time.monotonic() + COPIES_S
        for thread in self._copying:
            thread.join(max(0.0, until - time.monotonic()))
        self._copying = [thread for thread in self._copying if thread.is_alive()]
        if self._copying:
            self._say(
                f"the request's output_dir {self.path} did not take {len(self._copying)} reports"
                f" within {limit(COPIES_S)}; they are in the job's own folder"
            )

    def _copy(self, final: Path, backend: str, worker: str, rank: int) -> None:
        try:
            mirror(final, self.path, backend, worker, rank)
        except OSError as error:
            self._say(
                f"cannot copy reports to the request's output_dir {self.path}: {reason_of(error)};"
                f" they are in {final.parent}"
            )
