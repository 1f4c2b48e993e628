"""Windows inside steps: each opens and closes at its time on a thread of its own, which nobody waits for."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Sequence

from rlprof_ops.backends.window_timeouts import close_wait_s, open_wait_s
from rlprof_ops.request.step_part import StepPart
from rlprof_ops.request.steps import Window, window_at
from rlprof_ops.window.gate import OnClose, OnOpen, OpenWindow, StepGate
from rlprof_ops.words import did_you_mean, duration

OnMissed = Callable[[OpenWindow, str], None]
_MOST_PHASES = 50  # of a step, in the answer to one that never began


class PartGate(StepGate):
    """One window in each asked step, at a time from the begin of the step or of a phase in it.

    `lead_s`: how long before it holds anything a window has to be opened. `on_missed`: a window could not be,
    and why.
    """

    def __init__(
        self,
        windows: Sequence[Window],
        part: StepPart,
        lead_s: float,
        on_open: OnOpen,
        on_close: OnClose,
        on_missed: OnMissed,
    ) -> None:
        super().__init__(windows, on_open, on_close)
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

    def enter(self, step: int) -> None:
        before = self._inside
        if before is not None:
            if before.step == step:
                return
            before.end()  # nobody has told it
        window = window_at(self.windows, step)
        if window is None or step in self._taken:
            return
        self._taken.add(step)
        self._inside = _InsideStep(self, window, before)

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

    def __init__(self, gate: PartGate, window: Window, before: _InsideStep | None) -> None:
        self.step = window.start
        self._gate = gate
        self._window = OpenWindow(window, seen=[self.step], part=gate.part)
        self._before = before
        self._began_s = time.monotonic()
        self._lock = threading.RLock()  # a signal may end the process at any line of this
        self._thread: threading.Thread | None = None
        self._ended = threading.Event()
        self._ended_s = math.inf
        self._done = False
        self._cut = False
        self._phases: list[str] = []
        if gate.part.phase is None:
            self._count_from(self._began_s)

    @property
    def over(self) -> bool:
        """The step has ended, or the window has."""
        return self._done or self._ended.is_set()

    def begin_phase(self, name: str, at_s: float) -> None:
        if name == self._gate.part.phase:
            self._count_from(at_s)
        elif name not in self._phases and len(self._phases) < _MOST_PHASES:
            self._phases.append(name)

    def end(self, cut: bool = False) -> None:
        """The step ended; with `cut`, this process's windows did."""
        with self._lock:
            if self._ended.is_set():
                return
            self._ended_s, self._cut = time.monotonic(), cut
            self._ended.set()
            missed = self._thread is None and not self._done
        if missed:
            phase = self._gate.part.phase or ""
            seen = did_you_mean(phase, self._phases)
            self._miss(f"{self._how_it_ended()}, and no phase {phase!r} began in it.{seen}".rstrip("."))

    def join(self, seconds: float) -> None:
        thread = self._thread
        if thread is not None and thread.is_alive() and thread is not threading.current_thread():
            thread.join(seconds)

    def _count_from(self, begin_s: float) -> None:
        with self._lock:
            if self._thread is not None or self._done or self._ended.is_set():
                return
            self._window.counted_from_s = begin_s
            thread = threading.Thread(target=self._run, args=(begin_s,), name="rlprof-part", daemon=True)
            self._thread = thread
            try:
                thread.start()
            except RuntimeError as error:
                self._miss(str(error))

    def _run(self, begin_s: float) -> None:
        gate, part, window = self._gate, self._gate.part, self._window
        before, self._before = self._before, None
        if before is not None:  # it may still be closing its window
            before.join(open_wait_s() + close_wait_s())
        opens_s = begin_s + part.after_s
        if self._ended_before(opens_s - gate.lead_s):
            self._miss(f"{self._how_it_ended()}, before {part.at}")
            return
        if gate.open_now(window):
            closes_s = math.inf if part.length_s is None else opens_s + part.length_s
            early = self._ended_before(closes_s)
            if early and (self._cut or part.length_s is not None):
                end = f"{part.at}+{part.length}" if part.length else "its end"
                window.note = f"{self._how_it_ended()}, before {end}: the window closed with it"
            gate.close_now(partial=bool(window.note))
        self._done = True

    def _ended_before(self, at_s: float) -> bool:
        """Wait until then; whether the step ended meanwhile."""
        left_s = at_s - time.monotonic()
        return self._ended.wait(None if left_s == math.inf else max(0.0, left_s))

    def _how_it_ended(self) -> str:
        return f"step {self.step} ended after {duration((self._ended_s - self._began_s) * 1e9)}"

    def _miss(self, reason: str) -> None:
        self._done = True
        self._gate.on_missed(self._window, reason)
