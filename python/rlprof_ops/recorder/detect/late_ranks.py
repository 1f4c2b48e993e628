"""Finds ranks for which the others wait in collectives: inside a phase all take as long as the slow one.

Once a minute each process tells when it has called its latest collectives. What a rank did between them is
held against its peers, by step and phase: who takes clearly longer in nearly all of the latest steps, and in
most of the work of each, is slow.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from statistics import median

from rlprof_ops.recorder.detect.anomaly import SLOW_RANK, Anomaly
from rlprof_ops.recorder.detect.history import deviation
from rlprof_ops.recorder.detect.meetings import JointCall, blocks, meetings
from rlprof_ops.recorder.detect.phase_words import SEASONAL
from rlprof_ops.recorder.detect.ranks import LEAST_FACTOR, LEAST_SHARE, STEP, least_factor
from rlprof_ops.recorder.samples.step_marks import ToldStep
from rlprof_ops.runtime.on_demand.arrivals import EVERY_S, Arrivals, MetGroup
from rlprof_ops.words import duration

_STEPS, _SLOW_STEPS = 16, 13  # of the latest parts so many are slow
_LOOKS = 3
_SIGMAS = 3.5  # of what is ordinary between ranks; the median of the latest parts has to be so far out
_LEAST_SIGMA = 0.02
_MOST_OF_IT = 1.2  # what a step as a whole loses to its worst phase, so that more than that phase is slow
_BROAD = 0.6  # of the work of a step, in which the rank is slow
_PARTS_A_LOOK, _WINDOW = 8, 32  # more steps of a look are taken together
_MOST_WAITING = 32_000  # calls whose step has not been told
_MOST_STEPS, _KEPT_NS = 512, int(2.5 * EVERY_S * 1e9)  # of a process, and since when
_Place = tuple[int, int]  # of a step: see ToldStep
Exempt = Callable[[int, int], bool]
Who = Callable[[str, int], tuple[str, int] | None]


@dataclass(frozen=True)
class _Range:
    """A phase of a step, or a step as a whole; the step took `step_s`."""

    name: str
    begin_ns: int
    end_ns: int
    step_s: float


@dataclass
class _Part:
    """A rank's own time in one step or several, or in one phase of them, as far as it was seen, and its
    peers'. Of the `range_s` that these took, `seen_s` were looked at. `late_s` of `work_s` is work in which
    it was slow, `worst_s` what it lost at one place of each step at most.
    """

    steps: int = 0
    step_s: float = 0.0
    range_s: float = 0.0
    seen_s: float = 0.0
    own_s: float = 0.0
    peers_s: float = 0.0
    work_s: float = 0.0
    late_s: float = 0.0
    worst_s: float = 0.0

    def add(self, other: _Part) -> None:
        for name, value in other.__dict__.items():
            setattr(self, name, getattr(self, name) + value)

    @property
    def a_step_s(self) -> float:
        return self.step_s / self.steps

    @property
    def times(self) -> float:
        """What was seen, times this, is what there is in one step."""
        return self.range_s / self.seen_s / self.steps

    def score(self, at_end: bool) -> float:
        """The logarithm of how many times its peers' time it took. `at_end`: it is the first or last rank."""
        return math.log(max(self._counted_s(at_end), 1e-9) / self.peers_s)

    def lost_s(self, at_end: bool) -> float:
        """By how many seconds a step it took longer than its peers."""
        return (self._counted_s(at_end) - self.peers_s) * self.times

    def _counted_s(self, at_end: bool) -> float:
        """Of the first or last rank without where it lost most: there it may log or save for all."""
        return self.own_s - (self.worst_s if at_end else 0.0)


@dataclass
class _World:
    """The ranks that meet. `slot`: the minute of the latest look, `told` what came of it by rank, from node,
    and `members` who are in groups with those. `by_step`: whether steps are told, or each look counts as one.
    `parts`: by phase, by look and first step, by rank.
    """

    slot: int = 0
    told: dict[int, tuple[str, Arrivals]] = field(default_factory=dict)
    members: set[int] = field(default_factory=set)
    places: dict[int, tuple[str, int]] = field(default_factory=dict)  # rank -> node, pid
    is_judged: bool = False
    last: dict[MetGroup, int] = field(default_factory=dict)
    waiting: deque[JointCall] = field(default_factory=deque)
    spans: deque[tuple[int, int]] = field(default_factory=lambda: deque(maxlen=64))
    by_step: bool = False
    step: _Place = (0, 0)
    parts: dict[str, dict[tuple[int, _Place], dict[int, _Part]]] = field(default_factory=dict)
    named: set[int] = field(default_factory=set)


class LateRanks:
    """All ranks of a job. `who`: worker and rank of a process, by node and pid; `exempt`: whether a window
    was open between two moments.
    """

    def __init__(self, who: Who, exempt: Exempt) -> None:
        self._who, self._exempt = who, exempt
        self._worlds: dict[str, _World] = {}
        self._steps: dict[tuple[str, int], deque[ToldStep]] = {}
        self._driver: deque[ToldStep] = deque()

    def step(self, node: str, step: ToldStep) -> None:
        """A process has told a step."""
        for steps in (self._steps.setdefault((node, step.pid), deque()), *([self._driver] * step.leads)):
            steps.append(step)
            while len(steps) > _MOST_STEPS or steps[0].end_ns < step.begin_ns - _KEPT_NS:
                steps.popleft()

    def add(self, node: str, told: Arrivals) -> list[Anomaly]:
        """A look of one rank; what is found when it was the last of its world."""
        world = self._worlds.setdefault(told.world, _World())
        slot = round(told.t_ns / 1e9 / EVERY_S)
        found: list[Anomaly] = []
        if slot > world.slot:
            if not world.is_judged:
                found = self._judge(world)
            world.slot, world.told, world.members, world.is_judged = slot, {}, set(), False
        if slot < world.slot or world.is_judged:
            return found
        world.told[told.rank] = node, told
        world.places[told.rank] = node, told.pid
        world.members.update(*(group.members for group in told.groups))
        if world.members <= world.told.keys():
            found += self._judge(world)
        return found

    def _judge(self, world: _World) -> list[Anomaly]:
        world.is_judged = True
        told, world.told = world.told, {}
        try:
            fresh = list(meetings(told, world.last))
        except ValueError:
            return []
        if not fresh:
            return []
        for meeting in fresh:
            world.last[meeting.group] = max(world.last.get(meeting.group, 0), meeting.sequence)
        begins, ends = zip(*map(_span, fresh), strict=True)
        begin_ns = max(min(begins), world.spans[-1][1] if world.spans else 0)
        world.spans.append((begin_ns, max(begin_ns, *ends)))
        world.waiting.extend(fresh)
        while sum(len(meeting.own) for meeting in world.waiting) > _MOST_WAITING:
            for _ in range(max(1, len(world.waiting) // 10)):
                world.waiting.popleft()
        self._sum_up(world)
        return self._found(world, max(each.t_ns for _, each in told.values()))

    # ---- what was seen, by step and phase

    def _sum_up(self, world: _World) -> None:
        """Make parts of the collectives whose step has ended."""
        if not world.by_step and any(self._steps_of(world, rank) for rank in world.places):
            # The first step may last for many looks: they are no steps to count on from.
            world.by_step, world.step, world.parts = True, (0, 0), {}
        placed: dict[_Place, list[tuple[_Range, _Range, JointCall]]] = {}
        left: list[JointCall] = []
        for meeting in world.waiting:
            rank = min(meeting.own)
            steps = self._steps_of(world, rank)
            t_ns = meeting.own[rank][1]
            if steps and t_ns > steps[-1].end_ns:
                left.append(meeting)
                continue
            step = _step_at(steps, t_ns) if world.by_step else self._unnamed(world)
            if step is not None and step.place > world.step:
                whole = _Range(STEP, step.begin_ns, step.end_ns, step.seconds)
                placed.setdefault(step.place, []).append((_phase_at(step, t_ns) or whole, whole, meeting))
        world.waiting = deque(left)
        if not placed:
            return
        numbers = sorted(placed)
        world.step = numbers[-1]
        several = math.ceil(len(numbers) / _PARTS_A_LOOK)
        for place in range(0, len(numbers), several):
            for number in numbers[place : place + several]:
                for name, by_rank in self._parts(world, placed[number]).items():
                    before = world.parts.setdefault(name, {}).setdefault((world.slot, numbers[place]), {})
                    for rank, part in by_rank.items():
                        before.setdefault(rank, _Part()).add(part)
        for by_part in world.parts.values():
            for old in sorted(by_part)[:-_WINDOW]:
                del by_part[old]

    def _steps_of(self, world: _World, rank: int) -> Sequence[ToldStep]:
        """Those of the rank's process, else of the driver; none where nobody tells any."""
        return self._steps.get(world.places[rank]) or self._driver

    def _unnamed(self, world: _World) -> ToldStep:
        """One look as a step, where nobody tells steps."""
        begin_ns, end_ns = world.spans[-1]
        return ToldStep("", 0, 0, False, world.slot, begin_ns, (end_ns - begin_ns) / 1e9, {})

    def _parts(
        self, world: _World, placed: Sequence[tuple[_Range, _Range, JointCall]]
    ) -> dict[str, dict[int, _Part]]:
        """One step, by phase and as a whole, of each rank."""
        ranges: dict[str, _Range] = {}
        sums: dict[tuple[str, MetGroup], dict[int, float]] = {}
        parts: dict[str, dict[int, _Part]] = {}
        for phase, whole, meeting in placed:
            if SEASONAL.search(phase.name) or self._exempt(*_span(meeting)):
                continue
            own = self._own_s(world, meeting, phase.begin_ns)
            usual_s = median(own.values()) if len(own) > 2 else min(own.values())
            for name, each in {phase.name: phase, whole.name: whole}.items():
                ranges.setdefault(name, each)
                total = sums.setdefault((name, meeting.group), {})
                for rank, own_s in own.items():
                    total[rank] = total.get(rank, 0.0) + own_s
                    part = parts.setdefault(name, {}).setdefault(rank, _Part())
                    part.work_s += usual_s
                    part.late_s += usual_s if own_s > LEAST_FACTOR * usual_s else 0.0
                    part.worst_s = max(part.worst_s, own_s - usual_s)
        for (name, _), total in sums.items():
            for rank, own_s in total.items():
                parts[name][rank].own_s += own_s
                parts[name][rank].peers_s += median(s for other, s in total.items() if other != rank)
        for name, each in ranges.items():
            seen_ns = sum(
                max(0, min(end, each.end_ns) - max(begin, each.begin_ns)) for begin, end in world.spans
            )
            for part in parts[name].values():
                part.steps, part.step_s = 1, each.step_s
                part.range_s, part.seen_s = (each.end_ns - each.begin_ns) / 1e9, seen_ns / 1e9
        return parts

    def _own_s(self, world: _World, meeting: JointCall, begin_ns: int) -> dict[int, float]:
        """What each rank did since it was free, but not before `begin_ns` by the clock of the first rank."""
        first: dict[str, int] = {}
        nodes = {rank: world.places[rank][0] for rank in meeting.own}
        for rank, (_, t_ns) in meeting.own.items():
            first[nodes[rank]] = min(t_ns, first.get(nodes[rank], t_ns))
        here_ns = first[nodes[min(meeting.own)]]
        return {
            rank: max(0, t_ns - max(free_ns, begin_ns + first[nodes[rank]] - here_ns)) / 1e9
            for rank, (free_ns, t_ns) in meeting.own.items()
        }

    # ---- who is slow

    def _found(self, world: _World, t_ns: int) -> list[Anomaly]:
        ranks = {rank for group in world.last for rank in group.members}
        found = []
        for rank in sorted((ranks & world.places.keys()) - world.named):
            at_end = rank in (min(ranks), max(ranks))
            if at_end and not world.by_step:
                continue
            slow = [each for name in world.parts if (each := _slow(world, name, rank, at_end)) is not None]
            if slow:
                # One phase says more than the step, unless others of its phases lose as much.
                best = max(slow, key=lambda each: each.lost_s * (1 if each.name == STEP else _MOST_OF_IT))
                world.named.add(rank)
                found.append(self._finding(world, rank, best, t_ns))
        return found

    def _finding(self, world: _World, rank: int, slow: _Slow, t_ns: int) -> Anomaly:
        node, pid = world.places[rank]
        who = self._who(node, pid)
        worker, number = who or ("", rank)
        said = f"{worker} rank {number}" if who else f"rank {rank} (node {node}, pid {pid})"
        mine = [group for group in world.last if rank in group.members]
        groups = sorted({group.description or f"group {group.name}" for group in mine})
        waits = (
            "the others wait" if all(blocks(group) for group in mine) else "its host is behind the others'"
        )
        does = f"comes last to the collectives of {' and '.join(groups[:2])}"
        does += f" in {slow.name}" if slow.name else ""
        since, costs = "", f"{waits} {slow.lost_s / slow.step_s:.0%} of the time"
        evidence: dict[str, object] = {"sigma": slow.sigma, "waited_s": slow.lost_s, "step_s": slow.step_s}
        evidence |= {"groups": groups}
        if world.by_step:
            since = f" since step {slow.since}"
            costs = f"{waits} {duration(slow.lost_s * 1e9)} of a step of {duration(slow.step_s * 1e9)}"
            evidence |= {"since_step": slow.since, "seconds": slow.own_s, "peers_s": slow.own_s - slow.lost_s}
        text = f"{said} is slow{since}: it {does}, and {costs}"
        key = f"{SLOW_RANK}:{worker or f'{node} {pid}'}:{number}"
        step = world.step[1] if world.by_step else 0
        return Anomaly(SLOW_RANK, text, key, t_ns, step, worker, (number,), node, slow.name, evidence)


@dataclass(frozen=True)
class _Slow:
    """How slow a rank is in one phase, in seconds a step: its own time, what it lost, and the step."""

    name: str
    since: int
    own_s: float
    lost_s: float
    step_s: float
    sigma: float


def _slow(world: _World, name: str, rank: int, at_end: bool) -> _Slow | None:
    """None for a rank that is not slow there."""
    by_part = world.parts[name]
    parts = {key: by_part[key][rank] for key in sorted(by_part) if rank in by_part[key]}
    parts = {key: part for key, part in parts.items() if part.peers_s > 0 and part.seen_s > 0}
    scores = {key: part.score(at_end) for key, part in parts.items()}
    late = {
        key
        for key, part in parts.items()
        if scores[key] > math.log(LEAST_FACTOR) and part.lost_s(at_end) > LEAST_SHARE * part.a_step_s
    }
    latest = [*parts][-_STEPS:]
    if len(late.intersection(latest)) < _SLOW_STEPS or len({slot for slot, _ in late}) < _LOOKS:
        return None
    counted = [parts[key] for key in latest]
    if sum(part.late_s for part in counted) < _BROAD * sum(part.work_s for part in counted):
        return None
    others = [
        part.score(False)
        for by_rank in by_part.values()
        for other, part in by_rank.items()
        if other != rank and other not in world.named and part.peers_s > 0
    ]
    middle = median(others) if others else 0.0
    sigma = max(deviation(others, middle) if others else 0.0, _LEAST_SIGMA)
    least = math.log(least_factor(len(by_part[latest[-1]])))
    if median(scores[key] for key in latest) <= max(_SIGMAS * sigma, least):
        return None
    return _Slow(
        name,
        _since([*parts], late)[1][1],
        median(part.own_s * part.times for part in counted),
        median(part.lost_s(at_end) for part in counted),
        median(part.a_step_s for part in counted),
        sigma,
    )


def _since(keys: Sequence[tuple[int, _Place]], late: set[tuple[int, _Place]]) -> tuple[int, _Place]:
    """The part from which on most are slow; one that is not makes up for some that are."""
    since, total, most = keys[-1], 0.0, 0.0
    for key in reversed(keys):
        total += 1 if key in late else -_SLOW_STEPS / (_STEPS - _SLOW_STEPS)
        if total > most:
            since, most = key, total
    return since


def _step_at(steps: Sequence[ToldStep], t_ns: int) -> ToldStep | None:
    place = bisect_right(steps, t_ns, key=lambda step: step.begin_ns)
    return steps[place - 1] if place and t_ns <= steps[place - 1].end_ns else None


def _phase_at(step: ToldStep, t_ns: int) -> _Range | None:
    """The innermost phase in which `t_ns` lies, of those that come once."""
    found = [
        _Range(name, begin_ns, begin_ns + int(phase.seconds * 1e9), step.seconds)
        for name, phase in step.phases.items()
        if phase.count == 1 and (begin_ns := step.begin_ns + int(phase.begin_s * 1e9)) <= t_ns
    ]
    return max((each for each in found if t_ns <= each.end_ns), key=lambda each: each.begin_ns, default=None)


def _span(meeting: JointCall) -> tuple[int, int]:
    moments = [t_ns for pair in meeting.own.values() for t_ns in pair]
    return min(moments), max(moments)
