"""The step clock of a job, as training processes use it: the driver tells its steps, the others read them.

The driver's adapter (or a profiler of the runtime in the driver) leads: it tells each step to the supervisor
of its node over a Unix socket, which passes it to every node, and waits, bounded, where a window opens or
ends with that step. Nothing here raises, and nothing happens where nothing is asked.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import socket
import time
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from rlprof_ops import env_names
from rlprof_ops.backends.window_timeouts import open_wait_s
from rlprof_ops.host import foreign
from rlprof_ops.runtime.clock_file import SOCKET, ClockFile
from rlprof_ops.runtime.process.event_log import log_once
from rlprof_ops.words import limit

if TYPE_CHECKING:
    from rlprof_ops.request import ProfileRequest

_LINE = 1 << 16
_AGAIN_S = 1.0


@contextlib.contextmanager
def short_path(folder: str | os.PathLike[str], name: str) -> Iterator[str]:
    """A path of a socket in `folder` that fits the 107 bytes of a socket address, however long the folder's
    is."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{descriptor}/{name}"
    finally:
        os.close(descriptor)


class SupervisorLink:
    """The socket to the node's supervisor. A link that breaks is said once; every message tries whether
    another supervisor has taken the place of one that was killed.
    """

    def __init__(self, node_dir: str) -> None:
        """Raises OSError when nobody listens."""
        self._node_dir = node_dir
        self._rest = b""
        self._pid = os.getpid()
        self._socket: socket.socket | None = self._connected(open_wait_s())

    def _connected(self, seconds: float) -> socket.socket:
        link = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        link.settimeout(seconds)
        try:
            with short_path(self._node_dir, SOCKET) as path:
                link.connect(path)
        except OSError:
            link.close()
            raise
        return link

    @property
    def holds(self) -> bool:
        """Whether somebody hears; else it has been said."""
        return self._socket is not None

    def send(self, message: Mapping[str, object]) -> None:
        if os.getpid() != self._pid:
            return
        line = json.dumps(message).encode() + b"\n"
        for _ in range(2):  # that a link is broken shows when it is used
            try:
                if self._socket is None:
                    self._socket = self._connected(_AGAIN_S)
                    self._rest = b""
                self._socket.sendall(line)
                return
            except OSError as error:
                broken = self._socket is not None
                self._break(error)
                if not broken:
                    return

    def wait(self, key: str, value: object, seconds: float) -> dict[str, object] | None:
        """The first answer whose `key` is `value`; None when it does not come in time."""
        if self._socket is None or os.getpid() != self._pid:
            return None
        until = time.monotonic() + seconds
        while True:
            line, found, rest = self._rest.partition(b"\n")
            if found:
                self._rest = rest
                answer = next(foreign.rows(line), {})
                if answer.get(key) == value:
                    return answer
                continue
            left = until - time.monotonic()
            if left <= 0:
                return None
            try:
                self._socket.settimeout(left)
                chunk = self._socket.recv(_LINE)
            except TimeoutError:
                return None
            except OSError as error:
                self._break(error)
                return None
            if not chunk:
                self._break(OSError("it closed the link"))
                return None
            self._rest += chunk

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
        self._socket = None

    def _break(self, error: OSError) -> None:
        self.close()
        log_once(f"the node's supervisor does not hear the steps: {error.strerror or error}", key="no link")


class Lead:
    """What a leading profiler does at its steps. `begin` sends, `opened` waits where something changes."""

    def __init__(self, node_dir: str, request: ProfileRequest | None) -> None:
        """Raises OSError when the node has no supervisor that listens."""
        self._link = SupervisorLink(node_dir)
        self._clock = ClockFile(node_dir)
        self._changes = _changes(request)
        self._asked = 0
        self._first = True
        parts = (spec.part for spec in (request.captures if request else ()) if spec.part is not None)
        self._awaited = {part.phase for part in parts if part.phase is not None}
        self._told: set[str] = set()

    def begin(self, step: int) -> bool:
        """Tell that `step` begins; whether `opened` has to be called."""
        asked = self._clock.read().asked
        wait = self._first or step in self._changes or asked != self._asked
        self._asked, self._first = asked, False
        self._told.clear()
        self._link.send({"begin": step, "t_ns": time.time_ns(), "wait": wait})
        return wait

    def opened(self, step: int) -> None:
        """Wait until every node has opened the windows of `step`, for at most the knob's seconds."""
        if self._link.wait("go", step, open_wait_s()) is None and self._link.holds:
            log_once(
                f"not every window was open {limit(open_wait_s())} after step {step} began"
                " (RLPROF_OPEN_WAIT_SECONDS); training goes on"
            )

    def phase(self, step: int, name: str) -> None:
        """Tell of the first begin of a phase that windows inside steps count from."""
        if name in self._awaited and name not in self._told:
            self._told.add(name)
            self._link.send({"phase": name, "step": step, "t_ns": time.time_ns()})

    def end(self, step: int) -> None:
        self._link.send({"end": step, "t_ns": time.time_ns()})


def _changes(request: ProfileRequest | None) -> set[int]:
    """The steps with which a window begins, and those before which one has ended."""
    whole = [spec for spec in (request.captures if request else ()) if spec.part is None]
    windows = [window for spec in whole for window in spec.windows()]
    return {window.start for window in windows} | {window.stop for window in windows if window.stop}


def lead(node_dir: str | None, request: ProfileRequest | None) -> Lead | None:
    """The lead of this process, None where no supervisor listens (a job without one)."""
    if not node_dir:
        return None
    try:
        return Lead(node_dir, request)
    except FileNotFoundError:  # a job without adapters, or without a supervisor
        return None
    except OSError as error:
        log_once(f"no step clock in {node_dir}: {error.strerror or error}")
        return None


def ask_window(what: str) -> bool:
    """Have this process's session start or stop a window now; False when that cannot be had."""
    session = os.environ.get(env_names.NSYS_SESSION)
    asked = {"window": what, "session": session, "t_ns": time.time_ns()}
    return bool(session) and _granted(asked, "window", what)


def tell_request(text: str) -> bool:
    """Have every node take a request that the trainer's own configuration makes; False when that cannot be
    had."""
    return _granted({"request": text}, "request", True)


def _granted(message: Mapping[str, object], key: str, value: object) -> bool:
    """Send one message over a link of its own; whether the supervisor answered it in time."""
    try:
        link = SupervisorLink(os.environ[env_names.NODE_DIR])
    except (OSError, KeyError):
        return False
    with contextlib.closing(link):
        link.send(message)
        return link.wait(key, value, open_wait_s()) is not None


def current_step() -> int:
    """The job's step begun last; 0 before the first, and where nobody tells steps."""
    with contextlib.suppress(OSError, KeyError):
        return ClockFile(os.environ[env_names.NODE_DIR]).read().step
    return 0


_LED = "led_by_a_task"
_led: list[int] = []  # the open file of a process that leads; its lock ends with the process


def take_lead_in_task() -> bool:
    """Whether this process, which runs a Ray task, may lead the job: nobody has told a step yet, or the task
    that did ran on this node and its process is gone. One process of a node at a time.
    """
    if _led:
        return True
    try:
        path = os.path.join(os.environ[env_names.NODE_DIR], _LED)
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except (KeyError, OSError):
        return False
    with contextlib.suppress(OSError):
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.fstat(file).st_size or not current_step():
            os.pwrite(file, b"1", 0)
            _led.append(file)
            return True
    os.close(file)
    return False


def note(event: str, **fields: object) -> None:
    """Write one event of this process for the manifest, where a job, or a run of `rlprof wrap`, collects
    events.
    """
    env = os.environ
    if not env.get(env_names.NODE_DIR) and not (env.get(env_names.JOB) and env.get(env_names.RUN_DIR)):
        return
    from rlprof_ops.runtime.process.event_log import EventLog
    from rlprof_ops.runtime.process.worker_identity import find_identity

    events = find_identity(None, None, None, env).events / f"notes_{os.getpid()}.jsonl"
    EventLog(events).write(event, pid=os.getpid(), host=env.get(env_names.NODE, ""), **fields)
