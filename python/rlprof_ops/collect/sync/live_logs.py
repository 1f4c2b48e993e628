"""The logs that a person watches while the job runs, brought over every second by what is new in them.

The driver writes onto its node, where no storage that hangs can keep it waiting. Both files stay open, so
that a log that grows costs the storage one write a second, and one that does not costs nothing.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path

from rlprof_ops.collect.sync.append_logs import end_of_lines, is_sent_form, masked, whole_lines
from rlprof_ops.collect.sync.copy_bytes import write_all
from rlprof_ops.host.contained_dir import ContainedDir
from rlprof_ops.host.foreign import reason_of
from rlprof_ops.job.folders import pinned_run

SOURCE, TARGET = "live", "logs"
_MOST_A_LOOK = 64 << 20
_BEGINNING = 4096
_AFTER_TROUBLE_S = 10.0


@dataclass
class _Open:
    """A log on both sides; `offset` bytes of it are over there."""

    source: int
    target: int
    offset: int

    def close(self) -> None:
        for fd in (self.source, self.target):
            with contextlib.suppress(OSError):
                os.close(fd)


class LiveLogs:
    """Appends the new tails of `live/*` to `logs/*` of the run folder; the last pass compares and ends it."""

    def __init__(
        self,
        node_dir: Path,
        run_dir: Path,
        log: Callable[[str], None],
        secrets: Callable[[], Collection[str]] = tuple,
    ) -> None:
        self._node_dir, self._log, self._secrets = node_dir, log, secrets
        self._run = pinned_run(run_dir, node_dir)
        self._open: dict[str, _Open] = {}
        self._not_before = 0.0

    def look(self) -> int:
        """One look; returns the bytes that went over. Trouble is said, and it looks again after a while."""
        if time.monotonic() < self._not_before:
            return 0
        sent = 0
        for name in self._names():
            try:
                sent += self._send(name)
            except OSError as error:
                self._not_before = time.monotonic() + _AFTER_TROUBLE_S
                self._log(f"live log {name!r}: {reason_of(error)}")
                self._forget(name)
        return sent

    def close(self) -> None:
        for name in list(self._open):
            self._forget(name)

    def _names(self) -> list[str]:
        try:
            with ContainedDir(self._node_dir / SOURCE) as folder:
                return [path for path, _ in folder.files() if "/" not in path]
        except OSError:
            return []

    def _send(self, name: str) -> int:
        known = self._open.get(name)
        if known is None:
            known = self._begin(name)
            if known is None:
                return 0
            self._open[name] = known
        size = os.fstat(known.source).st_size
        if size == known.offset:
            return 0
        until, before = min(end_of_lines(known.source, size), known.offset + _MOST_A_LOOK), known.offset
        for block in whole_lines(known.source, known.offset, until):
            write_all(known.target, memoryview(masked(known.source, known.offset, block, self._secrets())))
            known.offset += len(block)
        return known.offset - before

    def _begin(self, name: str) -> _Open | None:
        """Open both; None while there is nothing to send, or when something else stands there."""
        with ContainedDir(self._node_dir / SOURCE) as node:
            source = node.open_read(name)
        try:
            if not os.fstat(source).st_size:
                os.close(source)
                return None
            with self._run.open() as run:
                target = run.open_write(f"{TARGET}/{name}", os.O_CREAT | os.O_APPEND)
                there = os.fstat(target).st_size
                begun = _Open(source, target, there)
                if there and not _same_beginning(source, run, f"{TARGET}/{name}", there):
                    begun.close()
                    raise OSError(f"{TARGET}/{name} holds something else; the last pass sets it aside")
                return begun
        except BaseException:
            with contextlib.suppress(OSError):
                os.close(source)
            raise

    def _forget(self, name: str) -> None:
        known = self._open.pop(name, None)
        if known is not None:
            known.close()


def _same_beginning(source: int, run: ContainedDir, place: str, there: int) -> bool:
    count = min(there, _BEGINNING)
    return there <= os.fstat(source).st_size and is_sent_form(
        os.pread(source, count, 0), run.read(place, count)
    )
