"""Captures asked for while a job runs: one sleeping thread looks at one folder once a second.

`rlprof capture` leaves a file in `<run folder>/control/`, each node's supervisor copies it to `<node
folder>/control/`, and every training process of the node finds it there. The thread costs a `stat` a second;
training code costs nothing.
"""

from __future__ import annotations

import json
import os
import re
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from rlprof_ops import backends, env_names
from rlprof_ops.host import atomic, foreign
from rlprof_ops.host.threads.own_thread import OwnThread
from rlprof_ops.runtime.process.event_log import log_once
from rlprof_ops.words import truth

FOLDER = "control"
STACKS = "stacks"  # a request for stacks, which the node's supervisor answers: no worker sees it
DUMPS = "torch_fr"  # a request for dumps of torch's flight recorder, which every process group's answer
POLL_S = 1.0
MOST_STEPS, MOST_SECONDS = 999_999, 86_400.0
_MOST_BYTES = 1 << 16
_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,120}")
# File systems stamp a folder's change with a coarse clock: a file that came in the same tick would be
# overlooked.
_COARSE_NS = 2_000_000_000


def asked(env: Mapping[str, str]) -> bool:
    """Whether this process should look for captures on demand: `RLPROF_ON_DEMAND` is 1, on, or a backend that
    has to start the process.
    """
    said = env.get(env_names.ON_DEMAND, "").strip().lower()
    return truth(said) is True or (bool(said) and backends.wraps(said))


@dataclass(frozen=True)
class CaptureRequest:
    """One request on demand. Exactly one of `next_steps` and `seconds` is set; `backend` "auto": nsys
    where the worker has a session. `flags`: of a capture that takes itself, as the request has them. Raises
    ValueError for numbers that no capture can have.
    """

    id: str
    workers: tuple[str, ...]
    ranks: tuple[int, ...] | None
    backend: str
    options: Mapping[str, str]
    next_steps: int | None
    seconds: float | None
    flags: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not _ID.fullmatch(self.id):  # it names files and windows
            raise ValueError(f"the id {self.id[:80]!r} is no plain word")
        if (self.next_steps is None) == (self.seconds is None):
            raise ValueError("it needs a number of steps or of seconds, and not both")
        if self.next_steps is not None and not 0 < self.next_steps <= MOST_STEPS:
            raise ValueError(f"{self.next_steps} steps: 1 to {MOST_STEPS} can be taken")
        if self.seconds is not None and not 0 < self.seconds <= MOST_SECONDS:  # nor NaN
            raise ValueError(
                f"{self.seconds:g} seconds: more than 0 and at most {MOST_SECONDS:g} are possible"
            )

    def to_json(self) -> str:
        found = {**self.__dict__, "schema": 1, "options": dict(self.options)}
        return json.dumps(found)

    @classmethod
    def from_json(cls, text: str | bytes) -> CaptureRequest:
        """Raises `ValueError` for anything but a demand of this schema."""
        try:
            return foreign.typed(foreign.parse(text), cls)
        except ValueError as error:
            raise ValueError(f"no capture request: {error}") from None


class Watcher:
    """The thread of one process. `on_demand` is called in it; so are `first`, and the actions of `later`
    when their time has come.
    """

    def __init__(
        self,
        folder: Path,
        on_demand: Callable[[CaptureRequest], None],
        first: Callable[[Watcher], None] | None = None,
    ) -> None:
        self._folder = folder
        self._on_demand = on_demand
        self._stop = threading.Event()
        self._known = set(names_in(folder))  # what was asked before this process was there is not for it
        self._later: list[tuple[float, Callable[[], None]]] = []
        if first is not None:
            self.later(0.0, lambda: first(self))
        OwnThread(self._run).start()

    def later(self, seconds: float, action: Callable[[], None]) -> None:
        """Call `action` in the watcher's thread after `seconds`; only from within that thread."""
        self._later.append((time.monotonic() + seconds, action))

    def stop(self) -> None:
        """Ask the thread to end; it does not act any more."""
        self._stop.set()

    def _run(self) -> None:
        scanned_ns = 0
        while not self._stop.wait(self._sleep_s()):
            try:
                self._do_due()
                changed_ns = _changed_ns(self._folder)
                if changed_ns + _COARSE_NS > scanned_ns:
                    scanned_ns = time.time_ns()
                    self._scan()
            except Exception as error:  # the thread must outlive whatever it finds
                log_once(f"on-demand captures: {type(error).__name__}: {error}")

    def _sleep_s(self) -> float:
        due = min((moment for moment, _ in self._later), default=float("inf"))
        return max(0.0, min(POLL_S, due - time.monotonic()))

    def _do_due(self) -> None:
        now = time.monotonic()
        due = [action for moment, action in self._later if moment <= now]
        self._later = [entry for entry in self._later if entry[0] > now]
        for action in due:
            action()

    def _scan(self) -> None:
        for asked in new_requests(self._folder, self._known):
            try:
                if not self._stop.is_set():
                    self._on_demand(asked)
            except Exception as error:
                log_once(f"capture request {asked.id}: {error}")


def _changed_ns(folder: Path) -> int:
    try:
        return os.stat(folder).st_mtime_ns
    except OSError:
        return -_COARSE_NS


def names_in(folder: Path) -> list[str]:
    """The JSON files of a folder that are whole, by name; none where there is no folder."""
    try:
        with os.scandir(folder) as entries:
            return sorted(
                entry.name
                for entry in entries
                if entry.name.endswith(".json") and not entry.name.startswith(".")
            )
    except OSError:
        return []


def _read(path: Path) -> bytes:
    with foreign.open_plain(path, os.O_NOFOLLOW) as file:
        owner = os.fstat(file.fileno()).st_uid
        if owner != os.getuid():
            raise PermissionError(f"it belongs to user {owner}, not to {os.getuid()}, whose job this is")
        return file.read(_MOST_BYTES)


def leave(folder: Path, demand: CaptureRequest) -> Path:
    """Put a demand where watchers look, whole or not at all; the file's path."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    path = folder / f"{demand.id}.json"
    atomic.write(path, demand.to_json())
    return path


def new_requests(source: Path, known: set[str]) -> list[CaptureRequest]:
    """What has been asked in `source` since; `known` are names of files, kept by the caller."""
    found: list[CaptureRequest] = []
    for name in names_in(source):
        if name in known:
            continue
        known.add(name)
        try:
            found.append(CaptureRequest.from_json(_read(source / name)))
        except (OSError, ValueError) as error:
            log_once(f"capture request {name} is left out: {error}")
    return found
