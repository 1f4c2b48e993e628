"""The profiler of a process in which something was asked: gates, captures, ranges, and a safe end."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar, overload

from rlprof_ops import backends, env_names
from rlprof_ops.backends.contract import WindowRecorder
from rlprof_ops.backends.window_support import AT_THE_END, ON_DEMAND, driver_of
from rlprof_ops.host.gpus import has_gpu
from rlprof_ops.host.threads.own_thread import OwnThread
from rlprof_ops.host.threads.time_limits import is_waiting, time_limits_wait
from rlprof_ops.runtime import step_clock
from rlprof_ops.runtime.clock_file import ClockFile
from rlprof_ops.runtime.current_profiler import current
from rlprof_ops.runtime.null_profiler import NULL_CONTEXT, NullContext, compiled_range
from rlprof_ops.runtime.plain_values import plain_name, whole_number
from rlprof_ops.runtime.process import signals
from rlprof_ops.runtime.process.event_log import EventLog, StepFile, log, log_once
from rlprof_ops.runtime.process.worker_identity import WorkerIdentity
from rlprof_ops.runtime.ranges.emitter_set import EmitterSet
from rlprof_ops.runtime.ranges.emitters import RangeEmitter
from rlprof_ops.runtime.ranges.range_times import Metrics, RangeTimes
from rlprof_ops.runtime.ranges.span import Span, StepContext, Tokens, end_tokens, start_tokens
from rlprof_ops.window.captures import Captures, ProcessCapture
from rlprof_ops.window.gate import ALWAYS_QUIET
from rlprof_ops.window.output_dir import Folders, OutputDir

if TYPE_CHECKING:
    from rlprof_ops.request import CaptureSpec
    from rlprof_ops.runtime.leader import Leader
    from rlprof_ops.runtime.null_profiler import NullProfiler
    from rlprof_ops.runtime.on_demand.watcher import CaptureRequest, Watcher

Function = TypeVar("Function")

_LOCK_TIMEOUT_S = 5.0
_RUNNING = -1
_POLL_S = 0.05
_MOST_STEPS = 1 << 62


class Profiler:
    """Opens and closes the windows of one process. Made by `profiler.from_env`; `specs` are the matching
    `CaptureSpec`s.

    Threads and coroutines may share it. A forked child has nothing of it: its methods do nothing there.
    Pickled, it is the current profiler of the process that loads it, a null one where that has none.
    """

    def __init__(
        self,
        place: WorkerIdentity,
        specs: Sequence[CaptureSpec],
        metrics: bool = False,
        output_dir: Folders | None = None,
        on_demand: bool = False,
        follows: bool = False,
    ) -> None:
        self.place = place
        self.follows = follows
        self.elsewhere: tuple[str, ...] = ()  # backends that somebody else takes for this process
        self._metrics = Metrics() if metrics else None
        self.active = (
            metrics  # ranges are looked at: a window is open, may open at a range, or times are wanted
        )
        self._pid = os.getpid()
        self._lock = threading.RLock()
        self._events = EventLog(place.events / f"{place.stem}.jsonl")
        self._step_file = StepFile(place.events / f"{place.stem}.step")
        self._last_step = 0
        self._step_thread = 0  # in which the step that runs began
        self._current_step: int | None = None  # tracked where it matters: not in quiet steps
        self._step_times_ns: dict[str, list[int]] = {}
        self._emitters: tuple[RangeEmitter, ...] = ()
        self._recorders = EmitterSet(self._events)
        self._step_tokens: Tokens = []
        self._closed = False
        self._working = False
        self._terminated = False
        self._pending: list[Callable[[int], None]] = []  # to do when the next step begins
        self._watcher: Watcher | None = None
        self._leader: Leader | None = None  # tells steps, may lead the job's: rlprof_ops.runtime.leader
        self._events.registered(
            place,
            (spec.backend for spec in specs),
            on_demand=on_demand,
            began=step_clock.current_step(),
            wrapped=bool(os.environ.get(env_names.NSYS_SESSION)),
            **({"follows": True} if follows else {}),
        )
        self._output_dir = OutputDir(output_dir or "", log_once)
        self._captures = self._none_yet()
        for spec in specs:
            self._captures.add(spec, specs)
        self._quiet = self._captures.inactive_step_range(0)
        if not follows and any(spec.part and spec.part.counts for spec in specs):
            OwnThread(self._hear_counts).start()
        self._forget_exit = signals.close_at_exit(self)
        self._signals = signals.Termination(self._on_terminate, lambda: self._working)
        signals.forget_in_children(self)

    def _none_yet(self) -> Captures:
        place = self.place
        return Captures(place, place.root, place.tmp, self._events, self._output_dir, choose_recorder)

    # -- steps

    def step(self, step: int) -> StepContext:
        """`with prof.step(n):` around training step `n`, counted from 1. An exception in it ends the open
        windows.
        """
        return StepContext(self, self._number(step))

    def start_step(self, step: int, began_s: float | None = None) -> bool:
        """Step `step` begins; for trainers with callbacks. False when it has begun already: then its time
        counts from here, and nothing else changes. `began_s`: since when, by the monotonic clock, where it
        was heard of later.
        """
        self._last_step = step = self._number(step)
        self._step_file.store(step)
        if self._leader is None:
            return self._start_step(step, began_s)
        is_new = self._leader.step != step
        with time_limits_wait():
            waits = self._leader.begin(step)  # the nodes open their windows while this process opens its own
            try:
                return self._start_step(step) and is_new
            finally:
                self._leader.opened(step, waits)

    def is_in_step(self, step: int) -> bool:
        """Whether step `step` has begun here and not ended."""
        return self._current_step == step or (self._leader is not None and self._leader.step == step)

    def _start_step(self, step: int, began_s: float | None = None) -> bool:
        low, high = self._quiet
        if low <= step < high:
            return True
        with self._work():
            begun = self._enter(step, began_s)
        if not self.follows:
            self.prepare_parts(step)
        return begun

    def stop_step(self, step: int | None = None) -> None:
        """Step `step` (default: the one begun last) ended in order. Calling it again changes nothing."""
        step = self._last_step if step is None else self._number(step, self._last_step)
        if self._leader is not None:
            with time_limits_wait():
                self._leader.end(step)
        low, high = self._quiet
        if low <= step < high:
            return
        with self._work():
            self._leave(step)

    def abort_step(self) -> None:
        """The step failed: what is open is closed as it is and marked partial. Training may go on."""
        if self._leader is not None:
            self._leader.close()
        if not self._captures.any_open:
            return
        with self._work():
            end_tokens(self._step_tokens)
            self._captures.close_all()
            self._settle()

    def _number(self, step: int, instead: int | None = None) -> int:
        """The step that a program tells; one that tells none is said once, and is the next one, or `instead`.
        A program that is watched runs as one that is not.
        """
        if type(step) is int and -_MOST_STEPS < step < _MOST_STEPS:
            return step
        number = whole_number(step)
        if number is None:
            log_once(
                f"a step is told as {type(step).__name__} that is no whole number, or too large a one: steps"
                f" are counted on from {self._last_step}",
                key="no step number",
            )
            return self._last_step + 1 if instead is None else instead
        return number

    def _enter(self, step: int, began_s: float | None) -> bool:
        if self._closed or self._current_step == step:
            return False
        if self._current_step is not None:  # its end was never told
            self._end_step_time(self._current_step)
            end_tokens(self._step_tokens)
        self._current_step = step
        self._step_thread = threading.get_ident()
        self._captures.enter(step, began_s=began_s)
        pending, self._pending = self._pending, []
        for action in pending:
            action(step)
        if self._captures.any_armed:
            self._step_times_ns[str(step)] = [time.time_ns(), _RUNNING]
        self._settle()
        return True

    def _leave(self, step: int) -> None:
        if self._current_step != step:
            return
        self._end_step_time(step)
        end_tokens(self._step_tokens)
        self._captures.leave(step)
        self._current_step = None
        self._settle(step + 1)

    def _end_step_time(self, step: int) -> None:
        times = self._step_times_ns.get(str(step))
        if times and times[1] == _RUNNING:
            times[1] = time.time_ns()

    def _settle(self, next_step: int | None = None) -> None:
        """After a change of windows: which ranges to record, for how many steps nothing can happen, and
        whether a SIGTERM would lose anything.
        """
        emitters = self._recorders.choose(self._captures.open_backends)
        if emitters != self._emitters:
            end_tokens(self._step_tokens)
            self._emitters = emitters
        if self._current_step is not None and emitters and not self._step_tokens:
            self._step_tokens = start_tokens(emitters, f"step {self._current_step}")
        armed = self._captures.any_armed
        ends = self._terminated or is_waiting(signal.SIGTERM)
        unsaved = self._captures.unsaved or self._output_dir.copies or ends
        if not self._closed:
            self._signals.keep(unsaved)
        self.active = not self._closed and (armed or self._metrics is not None or self._leader is not None)
        if self._closed:
            self._quiet = ALWAYS_QUIET
        elif armed or unsaved or self._pending or self._current_step is not None:
            self._quiet = (0, 0)
        else:
            self._quiet = self._captures.inactive_step_range(
                self._last_step + 1 if next_step is None else next_step
            )

    @property
    def any_open(self) -> bool:
        """Whether a window of this process is open."""
        return self._captures.any_open

    # -- telling steps

    def tell(self, leader: Leader) -> None:
        """Tell steps and phases by `leader` from now on; one that leads makes this process the driver."""
        self._leader = leader
        self.active = not self._closed

    def led_by(self, whose: str) -> None:
        """Whose steps these are, for the manifest: a trainer's, with its version."""
        if self._leader is not None and whose:
            self._leader.by = whose

    @property
    def leads(self) -> bool:
        return self._leader is not None and self._leader.leads

    # -- captures on demand (rlprof_ops.runtime.on_demand.apply), called from the watcher's thread

    def watch(self, folder: Path) -> None:
        """Look for captures on demand in `folder` from now on."""
        from rlprof_ops.runtime.on_demand import apply, watcher

        reference = weakref.ref(self)

        def on_demand(asked: CaptureRequest) -> None:
            profiler = reference()
            if profiler is not None and profiler._watcher is not None and not profiler._closed:
                apply.answer(profiler, profiler._watcher, asked)

        self._watcher = watcher.Watcher(folder, on_demand)

    # -- ranges

    def range(self, name: str) -> Span | NullContext:
        """`with prof.range("generation"):`; recorded only while a window is open, timed where metrics are
        asked.
        """
        if not self.active:
            return NULL_CONTEXT
        return Span(self, name if type(name) is str else plain_name(name))

    range._torchdynamo_inline = compiled_range  # type: ignore[attr-defined]  # torch traces it instead

    @overload
    def annotate(self, name: str | None = None) -> Callable[[Function], Function]: ...
    @overload
    def annotate(self, name: Function) -> Function: ...
    def annotate(self, name: object = None) -> object:
        """`@prof.annotate("train")`, or bare for the function's own name. The function runs exactly once,
        its exceptions are its own.
        """
        from rlprof_ops.runtime.ranges.annotate import Holder, decorator

        return decorator(Holder(self), name)

    def metrics(self, reset: bool = False) -> dict[str, RangeTimes]:
        """Count, total and longest time of each range so far, in seconds; {} unless asked
        (`RLPROF_METRICS=1`).
        """
        return self._metrics.read(reset) if self._metrics else {}

    def _phase_begins(self, name: str) -> tuple[ProcessCapture, ...]:
        """A range begins: open the captures of this phase; what `_phase_ends` needs."""
        if self._captures.parts_armed and not self.follows:
            self._captures.tell_phase(name)
            self.visit_own()
        if not self._captures.phases_armed:
            return ()
        with self._work():
            opened = self._captures.begin_phase(name)
            self._settle()
        return opened

    def visit_own(self) -> None:
        """A range of this process begins or ends, or a loop in one turns: on the thread that trains, windows
        inside the step may open and close.
        """
        if self._captures.parts_due and not self.follows and threading.get_ident() == self._step_thread:
            self.visit_parts()

    def visit_parts(self, opens: bool = True) -> None:
        """Open and close windows inside the step that are due; for the thread that trains. Without `opens`,
        close alone: nothing is being done.
        """
        if self._captures.parts_due:
            with self._work():
                self._captures.visit_parts(opens)
                self._settle()

    def prepare_parts(self, step: int) -> None:
        """Before the work of `step`, on the thread that does it, and beside windows that open meanwhile."""
        self._captures.prepare_parts(step)

    def has_parts(self, step: int) -> bool:
        """Whether windows inside steps are open or to come in `step` or later."""
        return not self._closed and self._captures.has_parts(step)

    def _hear_counts(self) -> None:
        """What windows inside steps begin or end with, and others count, from the job's clock."""
        with contextlib.suppress(OSError, KeyError):  # nobody counts: the windows say so
            clock = ClockFile(os.environ[env_names.NODE_DIR])
            while self.has_parts(self._last_step):
                state = clock.read()
                self.tell_phases(state.step, {name: at_ns / 1e9 for name, at_ns in state.phases.items()})
                time.sleep(_POLL_S)

    def tell_parts(self, step: int, began_s: float, runs: bool) -> None:
        """The job's step, for windows that open inside it on threads of their own."""
        with self._work():
            self._captures.tell_parts(step, began_s, runs)

    def tell_phases(self, step: int, began_s: Mapping[str, float]) -> None:
        """Since when phases of the job's step are, by the monotonic clock."""
        for name, at_s in began_s.items():
            self._captures.tell_phase(name, step, at_s)

    def _phase_ends(self, opened: tuple[ProcessCapture, ...], partial: bool) -> None:
        if os.getpid() != self._pid:  # a child that was forked in the range leaves it
            return
        with self._work():
            end_tokens(self._step_tokens)
            self._captures.end_phase(opened, partial)
            self._settle()

    # -- the end

    @property
    def closed(self) -> bool:
        return self._closed

    def close(self) -> None:
        """Close what is open, and say that this process ended in order. Calling it again changes nothing."""
        if not self._closed and os.getpid() == self._pid:
            with time_limits_wait():
                self._close()

    def _close(self) -> None:
        if not self._lock.acquire(timeout=_LOCK_TIMEOUT_S):
            log("another thread holds the profiler: its windows stay open")
            return
        outer, self._working = self._working, True
        try:
            if self._closed:
                return
            self._closed = True
            if self._leader is not None:
                self._leader.close()
            if self._watcher is not None:
                self._watcher.stop()
            end_tokens(self._step_tokens)
            self._captures.close_all()
            self._captures.finish()
            self._output_dir.finish()
            self._settle()
            self._events.write("ended", last_step=self._last_step, step_times_ns=self._ended_steps())
        finally:
            self._working = outer
            self._lock.release()
            self._forget_exit()
            self._signals.keep(False)
        if self._terminated and not outer and threading.current_thread() is threading.main_thread():
            self._terminated = False
            self._signals.deliver()

    def _ended_steps(self) -> dict[str, list[int]]:
        now = time.time_ns()
        return {
            step: [start, now if end == _RUNNING else end]
            for step, (start, end) in self._step_times_ns.items()
        }

    @contextlib.contextmanager
    def _work(self) -> Iterator[None]:
        """Opening or closing windows: one thread at a time, and a SIGTERM meanwhile waits until the report
        is in place, as does a time limit of the program's.
        """
        with time_limits_wait(), self._lock:
            outer, self._working = self._working, True
            try:
                yield
            finally:
                self._working = outer
        if self._terminated and not outer and threading.current_thread() is threading.main_thread():
            self._terminated = False
            self.close()
            self._signals.deliver()

    def _on_terminate(self) -> bool:
        """Whether the process may go on to die. Runs in the main thread, between any two bytecodes of it, or,
        while that waits in C code, in another one.
        """
        if self._working and self._lock._is_owned():  # type: ignore[attr-defined]
            self._terminated = True
            return False
        self.close()
        return True

    def _forget(self) -> None:
        """In a forked child: the windows belong to the parent, whatever the child does."""
        self._lock = threading.RLock()
        self._metrics = None
        self._closed = True
        self.active = False
        self._pending = []
        self._leader = None
        self._emitters = ()
        self._step_tokens = []
        self._step_file = StepFile(None)
        self._captures = self._none_yet()
        self._quiet = ALWAYS_QUIET
        self._signals.keep(False)

    def __reduce__(self) -> tuple[Callable[[], Profiler | NullProfiler], tuple[()]]:
        return current, ()

    def __copy__(self) -> Profiler:
        return self

    def __deepcopy__(self, memo: object) -> Profiler:
        return self

    def __enter__(self) -> Profiler:
        return self

    def __exit__(self, kind: object, error: object, traceback: object) -> None:
        self.close()


def choose_recorder(
    spec: CaptureSpec, beside: Sequence[CaptureSpec], asked_by: str | None = None
) -> tuple[WindowRecorder | None, str]:
    """What records `spec` in this process, or None and the reason why nothing can. `asked_by`: the id of a
    capture on demand.
    """
    driver = driver_of(asked_by)
    refused = backends.validate(spec, backends.Where(gpu=has_gpu(), driver=driver)).errors
    if refused:
        return None, "; ".join(refused)
    recorder, impossible = backends.get(spec.backend).recorder(spec, beside)
    if driver == ON_DEMAND and getattr(recorder, "late", False):
        return None, f"this process was started with a capture range: {AT_THE_END}"
    return recorder, impossible
