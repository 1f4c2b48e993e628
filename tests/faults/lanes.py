"""Brings jobs to their end two at a time, each lane in a sandbox of its own; tests wait for what became of
theirs.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

from tests.sandbox import Sandbox

LANES = 2  # one job leaves half of two cores idle: it waits for Ray, for nsys and for Slurm


@dataclass(frozen=True)
class Work:
    """What a test needs done in a sandbox; `seconds`: about how long, so that the long ones begin first."""

    name: str
    run: Callable[[Sandbox], Any]
    seconds: float = 30


class Lanes:
    """Works off some `Work` in sandboxes of three nodes; `result` gives each back, or raises what it
    raised.
    """

    def __init__(self, work: Iterable[Work]) -> None:
        self._left = sorted(work, key=lambda each: each.seconds)
        self._results: dict[str, Future[Any]] = {each.name: Future() for each in self._left}
        self._sandboxes: list[Sandbox] = []
        self._lock = threading.Lock()
        self._ended = False
        self._threads = [
            threading.Thread(target=self._lane, name=f"lane {number}", daemon=True)
            for number in range(min(LANES, len(self._left)))
        ]
        for thread in self._threads:
            thread.start()

    def result(self, name: str) -> Any:
        return self._results[name].result()

    def close(self) -> None:
        """End what still runs; a work under way fails then."""
        self._ended = True
        for sandbox in list(self._sandboxes):
            sandbox.down()
        for thread in self._threads:
            thread.join(60)

    def _lane(self) -> None:
        try:
            sandbox = Sandbox.up(nodes=3, kill_wait=30)
            self._sandboxes.append(sandbox)  # up until `close`: the tests read what its jobs left
            while (work := self._next()) is not None:
                self._do(work, sandbox)
        except BaseException as error:
            while (work := self._next()) is not None:  # nobody may wait for ever
                self._results[work.name].set_exception(error)

    def _do(self, work: Work, sandbox: Sandbox) -> None:
        began = time.monotonic()
        try:
            sandbox.heal()
            self._results[work.name].set_result(work.run(sandbox))
        except BaseException as error:
            self._results[work.name].set_exception(error)
        print(f"{threading.current_thread().name}: {work.name}: {time.monotonic() - began:.0f} s", flush=True)

    def _next(self) -> Work | None:
        with self._lock, contextlib.suppress(IndexError):
            return None if self._ended else self._left.pop()
        return None
