"""The job's steps over the whole run, in bounded memory: the latest ones whole, older ones summed up.

A step that stands out is never summed up.
"""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median
from typing import Any

from rlprof_ops.recorder.samples.step_marks import ToldStep

WHOLE = 512
_GROUP = 8
_MOST_GROUPS = 512
_MOST_OUTLIERS = 256


@dataclass(frozen=True)
class Group:
    """Steps `first` to `last`: `count` of them."""

    first: int
    last: int
    count: int
    least_s: float
    median_s: float
    most_s: float


class StepHistory:
    """Of the process that leads."""

    def __init__(self) -> None:
        self.whole: list[ToldStep] = []
        self.groups: list[Group] = []
        self.outliers: list[ToldStep] = []
        self._out: set[int] = set()

    @property
    def last(self) -> int:
        return self.whole[-1].step if self.whole else 0

    def add(self, step: ToldStep, stands_out: bool) -> None:
        self.whole.append(step)
        if stands_out:
            self._out.add(step.step)
        if len(self.whole) > WHOLE + _GROUP:
            old, self.whole = self.whole[:_GROUP], self.whole[_GROUP:]
            self.outliers += [each for each in old if each.step in self._out]
            self.outliers = sorted(self.outliers, key=lambda each: -each.seconds)[:_MOST_OUTLIERS]
            self._out -= {each.step for each in old}
            seconds = [each.seconds for each in old]
            self.groups.append(
                Group(old[0].step, old[-1].step, len(old), min(seconds), median(seconds), max(seconds))
            )
            if len(self.groups) > _MOST_GROUPS:
                pairs = zip(self.groups[::2], self.groups[1::2], strict=False)
                self.groups = [_both(one, two) for one, two in pairs] + self.groups[
                    len(self.groups) // 2 * 2 :
                ]

    def to_dict(self) -> dict[str, Any]:
        return {
            "steps": [_row(step) for step in self.whole],
            "outliers": [_row(step) for step in self.outliers],
            "groups": [list(group.__dict__.values()) for group in self.groups],
        }


def _row(step: ToldStep) -> list[Any]:
    phases = {name: round(phase.own_s, 4) for name, phase in step.phases.items()}
    return [step.step, step.begin_ns, round(step.seconds, 4), phases]


def _both(one: Group, two: Group) -> Group:
    count = one.count + two.count
    middle = (one.median_s * one.count + two.median_s * two.count) / count
    return Group(
        one.first, two.last, count, min(one.least_s, two.least_s), middle, max(one.most_s, two.most_s)
    )
