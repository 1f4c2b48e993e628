"""A window that is being taken."""

from __future__ import annotations

from dataclasses import dataclass, field

from rlprof_ops.request.steps import Window


@dataclass
class OpenWindow:
    """The planned `window`, its phase, and the steps seen so far. `asked_by`: the id of a capture on demand,
    or who else asked for a window that no request plans.
    """

    window: Window
    phase: str | None = None
    seen: list[int] = field(default_factory=list)
    asked_by: str | None = None

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
