"""Training steps: what a person writes (`3:5, 10`, `3:20:5`, `3:`) as sorted, disjoint, half-open windows."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from operator import index
from typing import Any, SupportsIndex

from rlprof_ops.request.problems import RequestError, shown

MAX_WINDOWS = 10_000  # a stride over a long range: each window is one report per rank
MAX_DIGITS = 12
OFF_WORDS = ("", "null", "none", "off", "~")

_INTEGER = re.compile(r"[+-]?[0-9]+", re.ASCII)
_DASHED = re.compile(r"([0-9]{1,12})\s*(?:-|–|\.\.\.?|to)\s*([0-9]{1,12})", re.ASCII)


@dataclass(frozen=True)
class Window:
    """Adjacent steps `start`, …, `stop - 1`. `stop` None: until the run ends. Steps are counted from 1."""

    start: int
    stop: int | None

    @property
    def label(self) -> str:
        """`step3-4`, both ends inclusive, as it stands in report names; `step3-end` for an open window."""
        return f"step{self.start}-{'end' if self.stop is None else self.stop - 1}"

    def __contains__(self, step: int) -> bool:
        return self.start <= step and (self.stop is None or step < self.stop)

    def __len__(self) -> int:
        if self.stop is None:
            raise TypeError(f"{self} has no end")
        return self.stop - self.start

    def __bool__(self) -> bool:
        return True

    def __str__(self) -> str:
        if self.stop is None:
            return f"{self.start}:"
        return str(self.start) if self.stop == self.start + 1 else f"{self.start}:{self.stop}"


def window_at(windows: Iterable[Window], step: int) -> Window | None:
    """The window that `step` is in."""
    return next((window for window in windows if step in window), None)


@dataclass(frozen=True)
class Steps:
    """The asked steps; falsy when off. `runs` are maximal runs of adjacent steps, sorted and disjoint."""

    runs: tuple[Window, ...] = ()

    @classmethod
    def parse(cls, value: Any) -> Steps:
        """Read text (`"3:5, 10"`), an int, a list of both, or None (off).

        Raises:
            RequestError: with every wrong item.
        """
        problems: list[str] = []
        windows: list[Window] = []
        for item in _items(value, problems):
            try:
                windows.extend(_windows(item))
            except ValueError as error:
                problems.append(str(error))
        if problems:
            raise RequestError(problems)
        steps = cls.of(windows)
        if len(steps.runs) > MAX_WINDOWS:
            raise RequestError(
                f"steps {shown(value)} make {len(steps.runs)} windows, each a report per rank; at most "
                f"{MAX_WINDOWS} are allowed: use a larger stride or an earlier end"
            )
        return steps

    @classmethod
    def of(cls, windows: Iterable[Window]) -> Steps:
        """The union of windows, in canonical form."""
        runs: list[Window] = []
        for window in sorted(windows, key=lambda w: w.start):
            if runs and (runs[-1].stop is None or window.start <= runs[-1].stop):
                last = runs[-1]
                stop = None if last.stop is None or window.stop is None else max(last.stop, window.stop)
                runs[-1] = Window(last.start, stop)
            else:
                runs.append(window)
        return cls(tuple(runs))

    def __bool__(self) -> bool:
        return bool(self.runs)

    def __contains__(self, step: SupportsIndex) -> bool:
        number = index(step)  # numpy's and torch's integers are steps too
        return any(number in run for run in self.runs)

    def __str__(self) -> str:
        return ",".join(str(run) for run in self.runs)

    @property
    def first(self) -> int | None:
        return self.runs[0].start if self.runs else None

    @property
    def stop(self) -> int | None:
        """One past the last step; None when open or off."""
        return self.runs[-1].stop if self.runs else None

    @property
    def is_open(self) -> bool:
        return bool(self.runs) and self.runs[-1].stop is None

    def windows(self, last: int | None = None, each_step: bool = False) -> tuple[Window, ...]:
        """The windows, cut after step `last` when it is known; with `each_step` one window per step.

        An open run whose end is unknown stays one open window even with `each_step`, and so does what is left
        after `MAX_WINDOWS` single steps.
        """
        cut = self.runs if last is None else self.clip(1, last + 1).runs
        if not each_step:
            return cut
        found: list[Window] = []
        for run in cut:
            left = max(0, MAX_WINDOWS - len(found))
            end = run.start if run.stop is None else min(run.stop, run.start + left)
            found += [Window(step, step + 1) for step in range(run.start, end)]
            if end != run.stop:
                found.append(Window(end, run.stop))
        return tuple(found)

    def too_many_windows(self, by: str) -> str:
        """Why a capture in which `by` makes each step a window of its own cannot take these steps. Empty when
        it can.
        """
        count = self.count()
        if count is None or count <= MAX_WINDOWS:
            return ""
        return (
            f"{by} makes {count} windows of steps {shown(str(self))}, each a report per rank"
            f"{' and phase' if by == 'each: phase' else ''}; at most {MAX_WINDOWS} are allowed: use a stride,"
            " an earlier end, or whole steps"
        )

    def count(self, last: int | None = None) -> int | None:
        """How many steps; None when open and `last` is unknown."""
        runs = self.windows(last)
        return None if any(run.stop is None for run in runs) else sum(len(run) for run in runs)

    def clip(self, start: int, stop: int | None) -> Steps:
        """Only the steps in `start:stop`."""
        kept = []
        for run in self.runs:
            low = max(run.start, start)
            high = run.stop if stop is None else stop if run.stop is None else min(run.stop, stop)
            if high is None or low < high:
                kept.append(Window(low, high))
        return Steps(tuple(kept))

    def minus(self, other: Steps) -> Steps:
        """The steps that are not in `other`."""
        left = self
        for run in other.runs:
            before = left.clip(1, run.start)
            after = Steps() if run.stop is None else left.clip(run.stop, None)
            left = Steps(before.runs + after.runs)
        return left

    def intersect(self, other: Steps) -> Steps:
        return self.minus(self.minus(other))


def _items(value: Any, problems: list[str]) -> list[Any]:
    if value is None:
        return []
    if isinstance(value, str):
        text = value.strip()
        if text.startswith("[") and text.endswith("]"):
            text = text[1:-1]
        return [] if text.lower() in OFF_WORDS else [part.strip() for part in text.split(",") if part.strip()]
    if isinstance(value, int) and not isinstance(value, bool):
        return [value]
    if isinstance(value, (list, tuple)):
        nested: list[Any] = []
        for item in value:
            if isinstance(item, (list, tuple)) or item is None:
                problems.append(
                    f"steps item {shown(item)} is not a step; write numbers or ranges: [3, 4, '8:10']"
                )
            else:
                nested.extend(_items(item, problems))
        return nested
    problems.append(
        f"steps {shown(value)} are not steps; write '3:5, 10', [3, 4, 10], '3:20:5', '3:' or null"
    )
    return []


def _windows(item: int | str) -> list[Window]:
    """One item: a step, or `start:stop[:stride]`. Raises ValueError with the message for the user."""
    if isinstance(item, int):
        return [Window(_at_least_one(item, str(item)), item + 1)]
    if ":" not in item:
        dashed = _DASHED.fullmatch(item)
        if dashed:
            first, last = int(dashed[1]), int(dashed[2])
            fix = f"{max(1, first)}:{max(first, last) + 1}"
            raise ValueError(
                f"steps {shown(item)}: a range is start:stop, and stop is not included; "
                f"write '{fix}' for steps {max(1, first)} to {max(first, last)}"
            )
        step = _at_least_one(_integer(item, item), item)
        return [Window(step, step + 1)]
    parts = [part.strip() for part in item.split(":")]
    if len(parts) > 3:
        raise ValueError(f"steps {shown(item)} has too many ':'; write start:stop or start:stop:stride")
    if not parts[0]:
        raise ValueError(f"steps {shown(item)} has no start; steps are counted from 1: write '1{item}'")
    start = _integer(parts[0], item)
    if len(parts) == 3 and not parts[1]:
        raise ValueError(
            f"steps {shown(item)}: a stride needs an end; write '{start}:{start + 100}:{parts[2]}'"
        )
    if not parts[1]:
        return [Window(_at_least_one(start, item), None)]
    stop = _integer(parts[1], item)
    stride = _integer(parts[2], item) if len(parts) == 3 else 1
    if start == 0 and stop > 0:
        raise ValueError(
            f"steps {shown(item)}: steps are counted from 1 and stop is not included; "
            f"write '1:{stop + 1}' for the first {stop} steps"
        )
    _at_least_one(start, item)
    if stride < 1:
        raise ValueError(f"steps {shown(item)}: the stride must be at least 1, not {stride}")
    if stop == start:
        raise ValueError(
            f"steps {shown(item)} is empty: stop is not included; write '{start}:{start + 1}' for step"
            f" {start} alone"
        )
    if stop < start:
        raise ValueError(
            f"steps {shown(item)} is empty: stop must be above start; did you mean '{stop}:{start}'?"
        )
    if stride == 1:
        return [Window(start, stop)]
    if (stop - start) // stride > MAX_WINDOWS:
        raise ValueError(
            f"steps {shown(item)} make {(stop - start - 1) // stride + 1} windows, each a report per rank; at"
            f" most {MAX_WINDOWS} are allowed: use a larger stride or an earlier end"
        )
    return [Window(step, step + 1) for step in range(start, stop, stride)]


def _integer(text: str, item: str) -> int:
    if not _INTEGER.fullmatch(text):
        raise ValueError(
            f"steps {shown(item)}: {shown(text)} is not a whole number; write '3:5' or '3, 4, 10'"
        )
    if len(text) > MAX_DIGITS:
        raise ValueError(f"steps {shown(item)}: {shown(text)} is too large for a step")
    return int(text)


def _at_least_one(step: int, item: str) -> int:
    if step < 1:
        raise ValueError(f"steps {shown(item)}: steps are counted from 1, so {step} is not a step")
    if step >= 10**MAX_DIGITS:
        raise ValueError(f"steps {shown(item)}: {step} is too large for a step")
    return step
