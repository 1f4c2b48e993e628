"""Windows inside steps: each opens and closes at its time on a thread of its own, which nobody waits for, or
at ranges, on the thread that trains.
"""

from __future__ import annotations

import contextlib
import math
import queue
import threading
import time
from collections.abc import Callable, Sequence

from rlprof_ops.backends.window_support import COUNTS_VLLM
from rlprof_ops.backends.window_timeouts import close_wait_s, open_wait_s
from rlprof_ops.host.threads.own_thread import OwnThread
from rlprof_ops.request.step_part import StepPart
from rlprof_ops.request.steps import Window, window_at
from rlprof_ops.window.gate import OnClose, OnOpen, OpenWindow, StepGate
from rlprof_ops.words import did_you_mean, duration

OnMissed = Callable[[OpenWindow, str], None]
_LEAD_KNOWN_S = 2.0  # before a window how long before it has to be opened is asked: that changes
_MOST_PHASES = 50  # of a step, in the answer to one that never began


class PartGate(StepGate):
    """One window in each asked step, at a time from the begin of the step or of a phase in it.

    `lead_s()`: how long before it holds anything a window has to be opened now. `on_missed`: a window could
    not be, and why. `at_ranges`: it opens and closes in `visit` alone, or when the step ends.
    """

    def __init__(
        self,
        windows: Sequence[Window],
        part: StepPart,
        lead_s: Callable[[], float],
        on_open: OnOpen,
        on_close: OnClose,
        on_missed: OnMissed,
        at_ranges: bool = False,
    ) -> None:
        super().__init__(windows, on_open, on_close)
        self.at_ranges = at_ranges
        self.part = part
        self.lead_s = lead_s
        self.on_missed = on_missed
        self._inside: _InsideStep | None = None

    @property
    def waiting(self) -> bool:
        """In an asked step whose window has not had its turn."""
        inside = self._inside
        return inside is not None and not inside.over

    def ends_before(self, step: int) -> bool:
        return self.current is not None and self._inside is None and step not in self.current.window

    def enter(self, step: int, began_s: float | None = None) -> None:
        """As of all gates; `began_s`: since when, by the monotonic clock, where that is not now."""
        before = self._inside
        if before is not None:
            if before.step == step:
                return
            before.end()  # nobody has told it
        window = window_at(self.windows, step)
        if window is None or step in self._taken:
            return
        self._taken.add(step)
        made = _AtRanges if self.at_ranges else _InsideStep
        self._inside = made(self, window, before, time.monotonic() if began_s is None else began_s)

    def begin_late(self, step: int) -> None:
        """`step` began before anybody here heard of it."""
        window = window_at(self.windows, step)
        if window is not None and step not in self._taken:
            self._taken.add(step)
            reason = f"another supervisor took over in step {step}, and does not know when it began"
            self.on_missed(OpenWindow(window), reason)

    def begin_phase(self, name: str, step: int | None = None, at_s: float | None = None) -> None:
        """A phase begins, or began at `at_s` of the monotonic clock; `step` None: in the step that runs."""
        inside = self._inside
        if inside is not None and step in (None, inside.step):
            inside.begin_phase(name, time.monotonic() if at_s is None else at_s)

    @property
    def due(self) -> bool:
        """`visit` would change something."""
        return isinstance(self._inside, _AtRanges) and self._inside.due

    def visit(self, opens: bool = True) -> None:
        """The thread that trains is where a window may open or close; without `opens`, close alone."""
        if isinstance(self._inside, _AtRanges):
            self._inside.visit(opens)

    def has_more(self, step: int) -> bool:
        """Whether a window is open or to come in `step` or later."""
        return self.waiting or any(window.start >= step for window in self.windows)

    def leave(self, step: int) -> None:
        inside = self._inside
        if inside is None:
            super().leave(step)  # a window that somebody before has opened
        elif inside.step == step:
            inside.end()

    def close(self, partial: bool) -> None:
        inside = self._inside
        if inside is not None:
            inside.end(cut=partial)
            inside.join(open_wait_s() + close_wait_s())
        else:
            super().close(partial)

    def settle(self) -> None:
        """Wait for a window of a step that has ended: another one opens."""
        if self._inside is not None and self._inside.over:
            self._inside.join(open_wait_s() + close_wait_s())

    def open_now(self, window: OpenWindow) -> bool:
        self._open(window)
        return self.current is not None

    def close_now(self, partial: bool) -> None:
        super().close(partial)


class _InsideStep:
    """The window of one step, from the step's begin on."""

    def __init__(self, gate: PartGate, window: Window, before: _InsideStep | None, began_s: float) -> None:
        self.step = window.start
        self._gate = gate
        self._window = OpenWindow(window, seen=[self.step], part=gate.part)
        self._window.too_late = self._too_late
        self._before = before
        self._waited_for = ""
        self._closes_s = math.inf
        self._began_s = began_s
        self._lock = threading.RLock()  # a signal may end the process at any line of this
        self._thread: OwnThread | None = None
        # That the step has ended, or what closes the window; unlike an Event's, its lock bears a signal.
        self._told: queue.SimpleQueue[bool] = queue.SimpleQueue()
        self._ended_s = math.inf
        self._done = False
        self._cut = False
        self._phases: list[str] = []
        if gate.part.begins_with is None:
            self._count_from(self._began_s)

    @property
    def over(self) -> bool:
        """The step has ended, or the window has."""
        return self._done or self._ended_s < math.inf

    def begin_phase(self, name: str, at_s: float) -> None:
        if name == self._gate.part.begins_with:
            self._count_from(at_s)
        elif name == self._gate.part.ends_with:
            self._closes_s = min(self._closes_s, at_s)
            self._told.put(True)
        elif name not in self._phases and len(self._phases) < _MOST_PHASES:
            self._phases.append(name)

    def end(self, cut: bool = False) -> None:
        """The step ended; with `cut`, this process's windows did."""
        with self._lock:
            if self._ended_s < math.inf:
                return
            self._ended_s, self._cut = time.monotonic(), cut
            self._told.put(True)
            missed = self._thread is None and not self._done
        if missed:
            self._miss(f"{self._how_it_ended()}, and {self._not_told}")

    @property
    def _not_told(self) -> str:
        part = self._gate.part
        if part.counts:
            return f"nothing told of {part.begins_with}: they are counted {COUNTS_VLLM}"
        phase = part.phase or ""
        return f"no phase {phase!r} began in it.{did_you_mean(phase, self._phases)}".rstrip(".")

    @property
    def is_busy(self) -> bool:
        """It has yet to open or to close its window."""
        return self._thread is not None and self._thread.is_alive()

    def join(self, seconds: float) -> None:
        if self._thread is not None:
            self._thread.join(seconds)

    def _count_from(self, begin_s: float) -> None:
        with self._lock:
            if self._thread is not None or self.over:
                return
            self._count(begin_s)

    def _count(self, begin_s: float) -> None:
        self._window.counted_from_s = begin_s
        self._thread = OwnThread(self._run, begin_s)
        try:
            self._thread.start()
        except RuntimeError as error:
            self._miss(str(error))

    def _run(self, begin_s: float) -> None:
        gate, part, window = self._gate, self._gate.part, self._window
        before, self._before = self._before, None
        if before is not None and before.is_busy:
            self._waited_for = str(before._window)
            before.join(open_wait_s() + close_wait_s())
        opens_s = begin_s + part.after_s
        if part.length_s is not None:
            self._closes_s = opens_s + part.length_s
        if self._ended_before(opens_s - _LEAD_KNOWN_S) or self._ended_before(opens_s - gate.lead_s()):
            before_at = f"{self._how_it_ended()}, before {part.at}"
            self._miss(before_at if self._ended_s < opens_s else self._too_late(self._ended_s))
            return
        if gate.open_now(window):
            self._close(early=self._ended_before(self._closes_s))
        self._done = True

    def _close(self, early: bool) -> None:
        """Close the window; `early`: with its step."""
        part = self._gate.part
        if early and (self._cut or part.length_s is not None or part.ends_with):
            self._window.note = (
                f"{self._how_it_ended()}, before {self._gate.part.end}: the window closed with it"
            )
        self._gate.close_now(partial=bool(self._window.note))

    def _too_late(self, at_s: float, start_s: float = 0.0, busy: str = "") -> str:
        """As `OpenWindow.too_late` says."""
        ended = at_s >= self._ended_s
        if not ended and at_s < self._closes_s:
            return ""
        over = self._how_it_ended() if ended else f"{self._gate.part.end} was over"
        if start_s:
            longer = "" if ended or self._gate.part.length is None else "; give 'for' more than that"
            return f"{over}, before the profiler recorded: its start took {duration(start_s * 1e9)}{longer}"
        if busy := busy or self._waited_for:
            over += f", while the profiler was still busy with the window of {busy}"
            return f"{over}: leave steps between them"
        return f"{over}, before the window could be opened"

    def _ended_before(self, at_s: float) -> bool:
        """Wait until then; whether the step ended meanwhile."""
        left_s = at_s - time.monotonic()
        with contextlib.suppress(queue.Empty):
            self._told.put(self._told.get(timeout=None if left_s == math.inf else max(0.0, left_s)))
        return self._ended_s < math.inf

    def _how_it_ended(self) -> str:
        return f"step {self.step} ended after {duration((self._ended_s - self._began_s) * 1e9)}"

    def _miss(self, reason: str) -> None:
        self._done = True
        self._gate.on_missed(self._window, reason)


class _AtRanges(_InsideStep):
    """The window of one step whose profiler bears only the thread that trains."""

    _opens_s = math.inf
    _opened = False

    def _count(self, begin_s: float) -> None:
        part = self._gate.part
        if self._opens_s == math.inf:
            self._window.counted_from_s = begin_s
            self._opens_s = begin_s + part.after_s
            if part.length_s is not None:
                self._closes_s = self._opens_s + part.length_s

    @property
    def due(self) -> bool:
        return not self.over and time.monotonic() >= (self._closes_s if self._opened else self._opens_s)

    def visit(self, opens: bool) -> None:
        if not self.due or not (opens or self._opened):
            return
        if self._opened:
            self._done = True
            self._close(early=False)
        elif time.monotonic() >= self._closes_s:
            self._miss(f"{self._gate.part.end} was over, and {self._no_place}")
        else:
            self._opened = self._gate.open_now(self._window)
            self._done = not self._opened

    def end(self, cut: bool = False) -> None:
        if self.over or self._opens_s == math.inf:
            super().end(cut)
            return
        self._ended_s, self._cut = time.monotonic(), cut
        if self._opened:
            self._done = True
            self._close(early=self._ended_s < self._closes_s)
        elif self._ended_s < self._opens_s:
            self._miss(f"{self._how_it_ended()}, before {self._gate.part.at}")
        else:
            self._miss(f"{self._how_it_ended()}, and {self._no_place}")

    @property
    def _no_place(self) -> str:
        part = self._gate.part
        return f"no range of the thread that trains began or ended between {part.at} and {part.end}"
