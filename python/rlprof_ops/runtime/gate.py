"""When one capture's windows open and close: the step gate, a state machine that knows nothing of profilers."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

NEVER = sys.maxsize


@dataclass
class OpenWindow:
    """A window that is being taken: the planned `window`, its phase, and the steps seen so far."""

    window: Any
    phase: str | None
    seen: list[int] = field(default_factory=list)

    @property
    def complete(self) -> bool:
        """Every planned step was seen. An open-ended window is never complete, it is just ended."""
        window = self.window
        return window.stop is not None and len(set(self.seen)) == window.stop - window.start


class StepGate:
    """Decides for one capture spec, `on_open(OpenWindow)` and `on_close(OpenWindow, partial)` do it.

    Steps may repeat, be skipped, or start after a resume: a window opens at the first of its steps that is seen and closes after its
    last one, or when a step outside it comes. A window is taken once; its steps coming again do not open it again.
    """

    def __init__(self, windows: Sequence[Any], on_open: Callable[[OpenWindow], None], on_close: Callable[[OpenWindow, bool], None]) -> None:
        self.windows = tuple(windows)
        self.current: OpenWindow | None = None
        self._on_open = on_open
        self._on_close = on_close
        self._taken: set[int] = set()

    def enter(self, step: int) -> None:
        """Step `step` begins."""
        if self.current and not _holds(self.current.window, step):
            self.close(partial=True)
        if self.current is None:
            window = self.window_of(step)
            if window is None or window.start in self._taken:
                return
            self._taken.add(window.start)
            self.current = OpenWindow(window, None)
            self._on_open(self.current)
        if self.current:
            self.current.seen.append(step)

    def leave(self, step: int) -> None:
        """Step `step` ended in order."""
        if self.current and self.current.window.stop == step + 1:
            self.close(partial=not self.current.complete)

    def close(self, partial: bool) -> None:
        """End the open window, if any."""
        current, self.current = self.current, None
        if current:
            self._on_close(current, partial)

    def drop(self) -> None:
        """Forget the open window without taking it: it could not be opened."""
        self.current = None

    def window_of(self, step: int) -> Any | None:
        return next((window for window in self.windows if _holds(window, step)), None)

    def quiet_around(self, step: int) -> tuple[int, int]:
        """The half-open range of steps around `step` in which this gate has nothing to do; empty inside a window."""
        low, high = -NEVER, NEVER
        for window in self.windows:
            if _holds(window, step):
                return step, step
            if window.start > step:
                high = min(high, window.start)
            elif window.stop is not None:
                low = max(low, window.stop)
        return low, high


def _holds(window: Any, step: int) -> bool:
    return bool(window.start <= step and (window.stop is None or step < window.stop))
