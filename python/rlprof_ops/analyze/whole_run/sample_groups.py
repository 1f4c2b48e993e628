"""The samples of one step, from their requests: the turns of each, and which are answers to one prompt.

How old the weights were that made them, as the trainer's adapter has told.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

import numpy as np

from rlprof_ops.analyze.whole_run.run_data import LateGroup, Staleness, StaleStep, StepGroups
from rlprof_ops.host import foreign
from rlprof_ops.runtime.process.event_log import SAMPLES
from rlprof_ops.runtime.request_log import EngineRequest

MOST_GROUPS = 3  # of a step that are named
_MOST_STALE_STEPS = 1000
Lags = dict[int, Counter[tuple[int, int]]]  # step -> (versions behind, versions that made it) -> samples


@dataclass(frozen=True)
class Sample:
    """One answer of a policy: its requests, a turn each, in the order in which they were done."""

    worker: str
    rank: int
    turns: list[EngineRequest] = field(default_factory=list)

    @property
    def last(self) -> EngineRequest:
        return self.turns[-1]

    @property
    def end_ns(self) -> int:
        return self.turns[-1].finished_ns

    @property
    def tokens(self) -> int:
        return sum(row.tokens for row in self.turns)

    @property
    def gaps_ms(self) -> list[float]:
        """Times between its turns: tools, the environment, and the trainer."""
        return [max(0, b.arrival_ns - a.finished_ns) / 1e6 for a, b in pairwise(self.turns)]

    @property
    def between_ms(self) -> float:
        return round(sum(self.gaps_ms), 1)


def samples_of(worker: str, rank: int, rows: Iterable[EngineRequest]) -> list[Sample]:
    """Of one replica's requests in the order in which they were done; a later turn whose first one is of
    another step begins one of its own.
    """
    found: list[Sample] = []
    open_: dict[str, Sample] = {}
    for row in rows:
        sample = open_.get(row.first) if row.first is not None else None
        if sample is None:
            sample = Sample(worker, rank)
            found.append(sample)
            open_[row.first or row.id] = sample
        sample.turns.append(row)
    return found


def groups_of(samples: Iterable[Sample]) -> list[list[Sample]]:
    """Answers to one prompt, the last one last, where there are several."""
    groups: dict[int, list[Sample]] = defaultdict(list)
    for sample in samples:
        if sample.last.group is not None:
            groups[sample.last.group].append(sample)
    return [sorted(group, key=lambda each: each.end_ns) for group in groups.values() if len(group) > 1]


def step_groups(groups: Sequence[Sequence[Sample]]) -> StepGroups | None:
    """None where no prompt has several answers."""
    if not groups:
        return None
    late = sorted((_late(group) for group in groups), key=lambda row: -row.alone_ms)
    return StepGroups(
        count=len(groups),
        answers=float(np.median([len(group) for group in groups])),
        alone_ms=round(float(np.mean([row.alone_ms for row in late])), 1),
        spread_ms=round(float(np.mean([row.spread_ms for row in late])), 1),
        last=late[:MOST_GROUPS],
    )


def _late(group: Sequence[Sample]) -> LateGroup:
    *others, last = group
    return LateGroup(
        id=last.last.id,
        worker=last.worker,
        rank=last.rank,
        answers=len(group),
        alone_ms=alone_ms(group, last),
        spread_ms=round((last.end_ns - group[0].end_ns) / 1e6, 1),
        tokens=last.tokens,
        median_tokens=float(np.median([sample.tokens for sample in others])),
        turns=last.last.turn,
        between_ms=last.between_ms,
    )


def alone_ms(group: Sequence[Sample], sample: Sample) -> float:
    """How long a sample went on when all others of its group were done."""
    others = max(other.end_ns for other in group if other is not sample)
    return round(max(0, sample.end_ns - others) / 1e6, 1)


def staleness_of(root: Path) -> Staleness | None:
    """Of every step that told it; None where none did."""
    lags: Lags = defaultdict(Counter)
    unit = ""
    for path in sorted(root.glob("nodes/*/events/notes_*.jsonl")):
        for row in () if path.is_symlink() else foreign.read_rows(path):
            if row.get("event") == SAMPLES:
                _add(lags, row)
                unit = unit or foreign.text(row.get("unit"))
    rows = [_step(step, counts) for step, counts in sorted(lags.items()) if counts]
    if not rows:
        return None
    total: Counter[int] = Counter()
    for counts in lags.values():
        for (behind, _), count in counts.items():
            total[behind] += count
    samples = total.total()
    return Staleness(
        unit=unit or "samples",
        samples=samples,
        mean=round(sum(behind * count for behind, count in total.items()) / samples, 3),
        most=max(total),
        mixed=round(sum(row.mixed for row in rows) / samples, 5),
        behind=sorted(total.items()),
        steps=rows[:: -(-len(rows) // _MOST_STALE_STEPS)],
    )


def _add(lags: Lags, row: Mapping[str, object]) -> None:
    step, version = foreign.whole(row.get("step")), foreign.whole(row.get("version"))
    if step is None or version is None:
        return
    for made in foreign.a_list(row.get("made")):
        told = [foreign.whole(value) for value in foreign.a_list(made)]
        if len(told) != 3 or None in told:
            continue
        first, last, count = (value or 0 for value in told)
        if count > 0:
            lags[step][version - last, abs(last - first) + 1] += count


def _step(step: int, counts: Counter[tuple[int, int]]) -> StaleStep:
    samples = counts.total()
    return StaleStep(
        step=step,
        samples=samples,
        mean=round(sum(behind * count for (behind, _), count in counts.items()) / samples, 3),
        least=min(behind for behind, _ in counts),
        most=max(behind for behind, _ in counts),
        mixed=sum(count for (_, versions), count in counts.items() if versions > 1),
    )
