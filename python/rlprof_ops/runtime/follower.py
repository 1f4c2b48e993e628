"""Steps and ranges of a process that knows no step: it reads the job's clock where its work begins and ends.

For workers that a trainer's driver calls (verl's `update_actor`, NeMo RL's `train`): an adapter puts
`task(name)` around each call. Windows of torch and memory captures open and close there, and of phases with
any backend; nsight windows of steps are the supervisor's, and a task is a range in them.
"""

from __future__ import annotations

import os
import threading
import time
from collections import Counter
from typing import TYPE_CHECKING

from rlprof_ops import backends, env_names
from rlprof_ops.host.threads.own_thread import OwnThread
from rlprof_ops.runtime.clock_file import ClockFile, ClockState
from rlprof_ops.runtime.null_profiler import NULL_CONTEXT, NullContext, NullProfiler
from rlprof_ops.runtime.process import signals
from rlprof_ops.runtime.process.place import Place, here

if TYPE_CHECKING:
    from rlprof_ops.request import CaptureSpec
    from rlprof_ops.runtime.active_profiler import Profiler
    from rlprof_ops.runtime.ranges.emitters import RangeEmitter

_POLL_S = 0.05


class Follower:
    """One process's view of the job's steps. Made by `follow`."""

    def __init__(
        self, profiler: Profiler | NullProfiler, clock: ClockFile | None, nvtx: RangeEmitter | None
    ) -> None:
        self.profiler = profiler
        self._clock = clock
        self._nvtx = nvtx
        self._lock = threading.RLock()
        self._running: Counter[Place] = Counter()  # how many tasks where
        self._step = 0
        self._told = 0  # the step that windows inside steps know of
        self._watching = False
        signals.forget_in_children(self)

    def _forget(self) -> None:
        """In a forked child: another thread of the parent's may have held the lock."""
        self._lock = threading.RLock()

    def task(self, name: str) -> Task:
        """`with follower.task("update_actor"):` around one piece of work that the driver asked for."""
        return Task(self, name)

    def begin(self) -> Place:
        """A task begins: take the clock's step. Returns where it does, for `end`."""
        place = here()
        with self._lock:
            before = self._step
            self._running[place] += 1
            self._sync()
            self.visit()
            if not self._watching and (self.profiler.any_open or self.profiler.has_parts(self._step)):
                self._watching = True
                OwnThread(self._watch).start()
        if self._step != before:  # who watches opens windows beside it
            self.profiler.prepare_parts(self._step)
        return place

    def end(self, begun: Place) -> None:
        """A task ends that began there."""
        with self._lock:
            self.visit()
            self._running[begun] -= 1
            if not self._running[begun]:
                del self._running[begun]

    def visit(self) -> None:
        """A task begins or ends, or a piece of its work: no other one runs while torch is started or stopped,
        but those around it.
        """
        with self._lock:
            if self._running.keys() == {here()}:
                self.profiler.visit_parts()

    def _sync(self) -> None:
        if self._clock is None or self.profiler.closed or self.profiler.leads:
            return
        state = self._clock.read()
        if state.step == self._step and state.running:
            self._tell_phases(state)
            return
        if self._step and (state.step != self._step or not state.running):
            self.profiler.stop_step(self._step)
            self._step = 0
        if state.step and state.running:
            self._step = state.step
            self.profiler.start_step(state.step, state.since_ns / 1e9 or None)
            self._tell_phases(state)

    def _tell_phases(self, state: ClockState) -> None:
        self.profiler.tell_phases(state.step, {name: at_ns / 1e9 for name, at_ns in state.phases.items()})

    def _tell_parts(self) -> None:
        """The clock's step, for windows that open inside it whatever this process does."""
        if self._clock is None or self.profiler.leads:
            return
        state = self._clock.read()
        if self._told and (self._told != state.step or not state.running):
            self.profiler.tell_parts(self._told, 0.0, runs=False)
            self._told = 0
        if state.step and state.running:
            if self._told != state.step:
                self._told = state.step
                self.profiler.tell_parts(state.step, state.since_ns / 1e9 or time.monotonic(), runs=True)
            self._tell_phases(state)

    def _watch(self) -> None:
        """While a window is open: close it when its step has ended, though no further task comes. While there
        are windows inside steps: open and close them.
        """
        while True:
            time.sleep(_POLL_S)
            with self._lock:
                parts = self.profiler.has_parts(self._step)
                if parts:
                    self._tell_parts()
                if not self._running:
                    self.profiler.visit_parts(opens=False)
                    if self.profiler.any_open:
                        self._sync()
                if not (self.profiler.any_open or parts) or self.profiler.closed:
                    self._watching = False
                    return


class Task:
    """One piece of work: a range of the session, and of the captures that this process takes itself."""

    __slots__ = ("_begun", "_follower", "_name", "_range", "_token")

    def __init__(self, follower: Follower, name: str) -> None:
        self._follower = follower
        self._name = name

    def __enter__(self) -> None:
        follower = self._follower
        self._begun = follower.begin()
        self._range = follower.profiler.range(self._name)
        self._range.__enter__()
        self._token = follower._nvtx.start(self._name) if follower._nvtx is not None else None

    def __exit__(self, kind: object, error: object, traceback: object) -> None:
        follower = self._follower
        if self._token is not None and follower._nvtx is not None:
            follower._nvtx.end(self._token)
        self._range.__exit__(kind, error, traceback)
        follower.end(self._begun)


class _Made:
    """The follower of this process; a forked or spawned child makes its own."""

    def __init__(self) -> None:
        self.pid = 0
        self.follower: Follower | None = None


_MADE = _Made()


def follow() -> Follower | None:
    """The follower of this process; None where nothing is asked of it. Adapters may ask at every call."""
    if _MADE.pid == os.getpid():
        return _MADE.follower
    _MADE.pid, _MADE.follower = os.getpid(), None
    session = os.environ.get(env_names.NSYS_SESSION)
    from rlprof_ops.runtime import profiler
    from rlprof_ops.runtime.ranges.emitters import nvtx_ranges

    if profiler.current().leads:
        return None
    clock = None
    try:
        clock = ClockFile(os.environ[env_names.NODE_DIR])
    except (OSError, KeyError):
        if not session:  # it would be a worker of whom nothing is ever told
            return None
    found: Profiler | NullProfiler = NullProfiler()
    if os.environ.get(env_names.WORKER) and _takes_windows(session):
        found = profiler.from_env(without=_elsewhere(), follows=True)
    if isinstance(found, NullProfiler) and not session:
        return None
    supervised = session and (isinstance(found, NullProfiler) or found.elsewhere)
    _MADE.follower = Follower(found, clock, nvtx_ranges() if supervised else None)
    return _MADE.follower


def _elsewhere() -> tuple[str, ...]:
    """The backends whose windows the node's supervisor opens, or the trainer's own calls. Of phases they know
    nothing: the owner of a session that is asked for those takes them itself, at its tasks.
    """
    from rlprof_ops.runtime.process.session_file import is_owner

    outside = tuple(name for name in backends.builtin() if backends.get(name).opened_by_others())
    phased = {spec.backend for spec in _specs() if spec.each == "phase"}
    return tuple(name for name in outside if name not in phased or not is_owner(os.environ))


def _specs() -> tuple[CaptureSpec, ...]:
    """What the job's request asks of this process."""
    from rlprof_ops.runtime.process.worker_identity import find_identity
    from rlprof_ops.runtime.profiler import request_from_env

    request, place = request_from_env(os.environ), find_identity(None, None, None, os.environ)
    return request.for_worker(place.worker, place.rank) if request else ()


def _takes_windows(session: str | None) -> bool:
    """Whether this process may have windows of its own. A child of the one that the session is named after
    has those alone that need no start under a profiler: EngineCore does the work of vLLM's server.
    """
    from rlprof_ops.runtime.process.session_file import is_owner

    if not session or is_owner(os.environ):
        return True
    return any(not backends.wraps(spec.backend) for spec in _specs())


def task(name: str) -> Task | NullContext:
    """A task of this process's follower, or a context that does nothing."""
    found = follow()
    return found.task(name) if found is not None else NULL_CONTEXT
