"""When one capture's windows open and close, and what is tried again: state machines that know nothing of
profilers.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from rlprof_ops.request.step_part import StepPart
from rlprof_ops.request.steps import Window, window_at

NEVER = sys.maxsize
ALWAYS_QUIET = (-NEVER, NEVER)


@dataclass
class OpenWindow:
    """The planned `window`, its phase, and the steps seen so far. `asked_by`: the id of a capture on demand,
    or who else asked for a window that no request plans. `late`: it was opened after its step had begun.
    `part`: what of its step it is to hold, in seconds after `counted_from_s`. `opened_s`, `closed_s`: when
    the profiler was. All three are of the monotonic clock. `note`: what it lacks, and why. `too_late`: why it
    holds nothing of what was asked if a profiler begins to record at a time, after a start of so many
    seconds (0: it has yet to be started) and after it was busy with the window of that name; empty where it
    does.
    """

    window: Window
    phase: str | None = None
    seen: list[int] = field(default_factory=list)
    asked_by: str | None = None
    late: bool = False
    part: StepPart | None = None
    counted_from_s: float = 0.0
    opened_s: float = 0.0
    closed_s: float = 0.0
    note: str = ""
    too_late: Callable[[float, float, str], str] = lambda at_s, start_s, busy: ""

    def __str__(self) -> str:
        """The steps it is of."""
        return f"step{'s' if ':' in str(self.window) else ''} {self.window}"

    @property
    def taken_s(self) -> tuple[float, float]:
        """From when to when it was open, in seconds after what `at` of its part counts from."""
        return round(self.opened_s - self.counted_from_s, 3), round(self.closed_s - self.counted_from_s, 3)

    @property
    def complete(self) -> bool:
        """Every planned step was seen. An open-ended window is never complete, it is just ended."""
        window = self.window
        return window.stop is not None and len(set(self.seen)) == window.stop - window.start

    def name_by_seen(self) -> None:
        """Call a window that somebody asked for by the steps that it saw, not by those it was to see."""
        if self.asked_by is not None:
            start = self.window.start
            self.window = Window(start, max([start, *self.seen]) + 1)


OnOpen = Callable[[OpenWindow], None]
OnClose = Callable[[OpenWindow, bool], None]


class Gate:
    """What all gates share: `on_open(OpenWindow)` and `on_close(OpenWindow, partial)` do the work that the
    gate decides.
    """

    def __init__(self, on_open: OnOpen, on_close: OnClose) -> None:
        self.current: OpenWindow | None = None
        self._on_open = on_open
        self._on_close = on_close

    def enter(self, step: int) -> None:
        """Step `step` begins."""

    def leave(self, step: int) -> None:
        """Step `step` ended in order."""

    def ends_before(self, step: int) -> bool:
        """Whether the open window has to be closed before `step` begins."""
        return False

    def inactive_step_range(self, step: int) -> tuple[int, int]:
        """The half-open range of steps around `step` in which this gate has nothing to do; empty when it
        has.
        """
        return ALWAYS_QUIET

    @property
    def waiting(self) -> bool:
        """Its window opens at a time inside the step that runs."""
        return False

    def settle(self) -> None:
        """Wait for a window that is being closed by another thread."""

    def close(self, partial: bool) -> None:
        """End the open window, if any."""
        current, self.current = self.current, None
        if current:
            self._on_close(current, partial)

    def drop(self) -> None:
        """Forget the open window without taking it: it could not be opened."""
        self.current = None

    def retry(self, window: OpenWindow) -> None:
        """`window` could not be opened yet: the next of its steps may."""

    def taken(self, window: Window) -> None:
        """`window` has had its turn, by somebody before."""

    def not_heard(self, first: int, stop: int) -> Iterable[Window]:
        """Steps from `first` to before `stop` came and went, and nobody told of them: they are in the open
        window if it is theirs. Returns the windows that were lost.
        """
        if self.current:
            ends = self.current.window.stop
            self.current.seen += range(first, min(stop, ends or stop))
            if ends is not None and ends <= stop:
                self.close(partial=not self.current.complete)
        return ()

    def _open(self, window: OpenWindow) -> None:
        self.current = window
        self._on_open(window)


class StepGate(Gate):
    """Windows of whole steps.

    Steps may repeat, be skipped, or start after a resume: a window opens at the first of its steps that is
    seen and closes after its last one, or when a step outside it comes. A window is taken once; its steps
    coming again do not open it again.
    """

    def __init__(self, windows: Sequence[Window], on_open: OnOpen, on_close: OnClose) -> None:
        super().__init__(on_open, on_close)
        self.windows = tuple(windows)
        self._taken: set[int] = set()

    def ends_before(self, step: int) -> bool:
        return self.current is not None and step not in self.current.window

    def enter(self, step: int) -> None:
        if self.ends_before(step):
            self.close(partial=True)
        if self.current is None:
            window = window_at(self.windows, step)
            if window is None or window.start in self._taken:
                return
            self._taken.add(window.start)
            self._open(OpenWindow(window))
        if self.current:  # else it could not be opened
            self.current.seen.append(step)

    def leave(self, step: int) -> None:
        if self.current and self.current.window.stop == step + 1:
            self.close(partial=not self.current.complete)

    def retry(self, window: OpenWindow) -> None:
        self._taken.discard(window.window.start)

    def taken(self, window: Window) -> None:
        if window in self.windows:
            self._taken.add(window.start)

    def not_heard(self, first: int, stop: int) -> Iterable[Window]:
        super().not_heard(first, stop)
        unheard = (window_at(self.windows, step) for step in range(first, stop))
        lost = {
            window: None
            for window in unheard
            if window is not None and stop not in window and window.start not in self._taken
        }
        self._taken.update(window.start for window in lost)
        return tuple(lost)

    def inactive_step_range(self, step: int) -> tuple[int, int]:
        return _quiet_around(self.windows, step)


class PhaseGate(Gate):
    """One window for each phase of each asked step: the outermost range of that name, the first time in
    the step.
    """

    def __init__(self, windows: Sequence[Window], on_open: OnOpen, on_close: OnClose) -> None:
        super().__init__(on_open, on_close)
        self.windows = tuple(windows)
        self._step: int | None = None
        self._taken: set[tuple[int, str]] = set()

    def enter(self, step: int) -> None:
        self.close(partial=True)
        self._step = step if window_at(self.windows, step) else None

    def leave(self, step: int) -> None:
        self.close(partial=True)
        self._step = None

    @property
    def armed(self) -> bool:
        """In an asked step: the next range opens a window."""
        return self._step is not None

    def begin(self, phase: str) -> bool:
        """A range begins; whether it opened a window, which `end` then closes. Inside an open window it is
        only a range.
        """
        if self._step is None or self.current or (self._step, phase) in self._taken:
            return False
        self._taken.add((self._step, phase))
        self._open(OpenWindow(Window(self._step, self._step + 1), phase, [self._step]))
        return self.current is not None

    def end(self, partial: bool = False) -> None:
        """The range that opened the window ended."""
        self.close(partial)

    def inactive_step_range(self, step: int) -> tuple[int, int]:
        return _quiet_around(self.windows, step)


class TimedGate(Gate):
    """A window from now until it is told to end; it is named by the steps that it saw."""

    def begin(self, window: Window, step: int) -> None:
        """Open it in the middle of `step`."""
        self._open(OpenWindow(window, None, [step]))

    def enter(self, step: int) -> None:
        if self.current:
            self.current.seen.append(step)

    def inactive_step_range(self, step: int) -> tuple[int, int]:
        return (step, step) if self.current else ALWAYS_QUIET


def _quiet_around(windows: Sequence[Window], step: int) -> tuple[int, int]:
    low, high = ALWAYS_QUIET
    for window in windows:
        if step in window:
            return step, step
        if window.start > step:
            high = min(high, window.start)
        elif window.stop is not None:
            low = max(low, window.stop)
    return low, high
