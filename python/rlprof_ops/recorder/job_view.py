"""What the head knows of the whole job: the news of all nodes, summed up, judged, and told in one summary."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Container, Iterable, Iterator
from dataclasses import dataclass, field, replace
from statistics import median
from typing import Any, TypedDict

from rlprof_ops.recorder.detect.anomaly import HANG, Anomaly
from rlprof_ops.recorder.detect.driver_waits import held_engine
from rlprof_ops.recorder.detect.late_ranks import LateRanks
from rlprof_ops.recorder.detect.machine import MemoryDetector, ThrottleDetector, gpu_faults
from rlprof_ops.recorder.detect.ranks import RankDetector
from rlprof_ops.recorder.detect.slow_steps import StepDetector
from rlprof_ops.recorder.detect.stalled import is_working, stalled
from rlprof_ops.recorder.detect.trigger import StepFact
from rlprof_ops.recorder.news import News
from rlprof_ops.recorder.samples.engines import EngineSample
from rlprof_ops.recorder.samples.gpu import GpuSample
from rlprof_ops.recorder.samples.host_samples import HostSample
from rlprof_ops.recorder.samples.step_marks import ToldStep, WindowMark
from rlprof_ops.recorder.step_history import StepHistory
from rlprof_ops.runtime.marks import Now
from rlprof_ops.words import duration

SCHEMA = 1
HANG_S = 300.0
_HANG_STEPS = 10  # times the median step
_SUSPECT_S = 30.0
_SUSPECT_TIMES = 3  # the median of the phase, else of the step
_LEAST_STEPS = 5
_FIRST_HANG_S = 1800.0  # while it is not known how long a step takes
_LATE_STEPS = 2  # after so many further steps a rank that has told nothing is not waited for
_AROUND_WINDOW_NS = 1_000_000_000
_LOST_NS = 300_000_000_000  # a node that tells nothing for so long: of 4,096, each tells once a minute
_MOST_OPEN_NS = 3_600_000_000_000  # of a window of whose process nothing is known
_MOST_FINDINGS = 500
_MOST_SLOW = 16
_MOST_WINDOWS = 256
_MOST_CLOSED = 4096


class NodeSummary(TypedDict):
    """A node's latest look; `t_ns` 0 and no host for one that has told nothing."""

    t_ns: int
    host: HostSample | None
    gpus: list[GpuSample]
    engines: list[EngineSample]


class RoleSummary(TypedDict):
    """A kind of worker; `phases` is phase -> ranks in it now."""

    worker: str
    ranks: int
    step: int
    phases: dict[str, int]
    median_s: float


class SlowRankRow(TypedDict):
    """A rank whose last step took `factor` times its peers'."""

    worker: str
    rank: int
    node: str
    factor: float


class StepRows(TypedDict):
    """Rows of a step: number, begin (Unix ns), seconds, own seconds of its phases."""

    steps: list[tuple[int, int, float, dict[str, float]]]


class JobSummary(TypedDict):
    """What `JobView.summary` writes, in the types in which whoever reads it may find it."""

    schema: int
    job: str
    t_ns: int
    step: int
    step_median_s: float
    nodes: dict[str, NodeSummary]
    roles: list[RoleSummary]
    history: StepRows
    slowest: list[SlowRankRow]
    windows: list[WindowMark]
    findings: list[Anomaly]


@dataclass
class _Role:
    """One kind of worker: its ranks, and the steps that not all of them have told."""

    detector: RankDetector
    ranks: dict[int, str] = field(default_factory=dict)  # rank -> node
    untold: dict[tuple[int, int], dict[int, ToldStep]] = field(default_factory=dict)
    judged: tuple[int, int] = (0, 0)
    latest: deque[float] = field(default_factory=lambda: deque(maxlen=64))


@dataclass
class _OpenWindow:
    """A window and its node. `seen`: its process was among those that the node tells of."""

    mark: WindowMark
    node: str
    seen: bool


class JobView:
    """Takes news, gives findings, and can be written down at any time. `hang_s` is what a trigger asks."""

    def __init__(self, job: str, nodes: Iterable[str], hang_s: float | None = None) -> None:
        self.job = job
        self.findings: list[Anomaly] = []
        self.facts: deque[StepFact] = deque(maxlen=256)
        self.history = StepHistory()
        self._nodes: dict[str, News | None] = dict.fromkeys(nodes)
        self._hang_s = hang_s
        self._roles: dict[str, _Role] = {}
        self._now: dict[str, tuple[Now, ...]] = {}
        self._driver = StepDetector()
        self._late = LateRanks(self._who, self._is_exempt)
        self._driver_name = ""
        self._moved_ns = 0
        self._hung_at = 0
        self._standing: set[str] = set()
        self._unmet = ""
        self._keys: set[str] = set()
        self._throttle: dict[tuple[str, int], ThrottleDetector] = {}
        self._memory: dict[tuple[str, str], MemoryDetector] = {}
        self._latest_ns = 0
        self._heard_ns: dict[str, int] = {}  # node -> `_latest_ns` when it last told something: clocks differ
        self._open: dict[tuple[str, int, str, int], _OpenWindow] = {}
        self._closed: deque[tuple[int, int]] = deque(maxlen=_MOST_CLOSED)

    # ---- news

    def take(self, news: News) -> list[Anomaly]:
        """What these news let find."""
        before = self._names
        self._nodes[news.node] = news
        self._now[news.node] = news.now
        self._latest_ns = self._heard_ns[news.node] = max(self._latest_ns, news.t_ns)
        found: list[Anomaly | None] = []
        for event in news.windows:
            self._window(news.node, event, (news.node, event.pid) in before)
        self._close_left(news.t_ns)
        for step in sorted(news.steps, key=lambda step: (step.place, step.rank)):
            found += self._step(news.node, step)
        for told in news.arrivals:
            found += self._late.add(news.node, told)
        found += self._machine(news)
        return [finding for finding in found if finding is not None and self._is_new(finding)]

    def take_unmet(self, text: str) -> None:
        """What somebody asks Ray for and no node has, as a sentence; "" when that is over."""
        self._unmet = text

    def remember(self, findings: Iterable[Anomaly]) -> None:
        """Findings that were told before: they are not told again."""
        for finding in findings:
            self._is_new(finding)

    def look(self, t_ns: int) -> list[Anomaly]:
        """Without news: whether a collective waits for a rank, or the step clock stands still."""
        for now in self._all_now():
            if now.leads:
                self._moved_ns = max(self._moved_ns, now.begin_ns, now.phase_ns)
        stalled, works = self._stalled(t_ns)
        clock = set() if works and self._hang_s is None else {f"{HANG}:{self._moved_ns}"}
        self._standing = clock | {each.key for each in stalled}
        found = [replace(each, step=self.step) for each in stalled if self._is_new(each)]
        if self._hang_s is None and any(finding.kind == HANG for finding in stalled):
            self._hung_at = self._moved_ns
        return [*found, *self._still(t_ns, works)]

    def stands(self, hang: Anomaly) -> bool:
        """Whether a hang that was found goes on, by the latest look."""
        return hang.key in self._standing

    def _stalled(self, t_ns: int) -> tuple[list[Anomaly], bool]:
        """Collectives that stand, and whether anything that is not in one works."""
        told = [news for news in self._nodes.values() if news is not None]
        works = any(engine.tokens_s > 0 for news in told for engine in news.engines)
        states = {news.node: news.ranks for news in told}
        faults = {news.node: gpu_faults(news.node, news.gpus) for news in told}
        found = stalled(states, self.suspect_s, t_ns, works, (t_ns - self._moved_ns) / 1e9, faults)
        return found, works or any(is_working(rank) for news in told for rank in news.ranks)

    def _awaited(self, phase: str) -> str:
        """What the driver waits for in `phase`, where that is seen; "" where it is not."""
        told = [news for news in self._nodes.values() if news is not None]
        names = {place: f"{worker} {rank}" for place, (worker, rank) in self._names.items()}
        held = held_engine({news.node: news.engines for news in told}, names, _SUSPECT_S, phase)
        return held or (f"the driver waits: {self._unmet}" if self._unmet else "")

    def _still(self, t_ns: int, works: bool) -> list[Anomaly]:
        """Whether the step clock stands; who works may go on for as long as a first step."""
        step = self.step
        limit_s = self.hang_limit_s
        phase = self._open_phase
        awaited = "" if works else self._awaited(phase)
        if works and self._hang_s is None:
            limit_s = max(limit_s, _FIRST_HANG_S)
        elif awaited and self._hang_s is None:
            limit_s = min(limit_s, self.suspect_s)
        if not step or not self._moved_ns or (t_ns - self._moved_ns) / 1e9 < limit_s:
            return []
        if self._hung_at == self._moved_ns:
            return []
        self._hung_at = self._moved_ns
        still_s = (t_ns - self._moved_ns) / 1e9
        text = f"the step clock stands still for {duration(still_s * 1e9)} at step {step}" + (
            f", in {phase}" if phase else ""
        )
        text = f"{awaited}; {text}" if awaited else text
        evidence = {"still_s": still_s, "limit_s": limit_s, "median_s": self._driver.steps.median_s}
        finding = Anomaly(
            HANG, text, f"{HANG}:{self._moved_ns}", t_ns, step, self._driver_name, (), "", phase, evidence
        )
        return [finding] if self._is_new(finding) else []

    @property
    def _open_phase(self) -> str:
        return next((now.phase for now in self._all_now() if now.leads and now.phase), "")

    @property
    def suspect_s(self) -> float:
        """How long a collective may stay open before anybody asks for whom it waits."""
        phase = self._open_phase
        steps = self._driver.steps
        usual_s = self._driver.phase_median_s(phase) or (
            steps.median_s if len(steps) >= _LEAST_STEPS else 0.0
        )
        return max(_SUSPECT_S, _SUSPECT_TIMES * usual_s) if usual_s else HANG_S

    @property
    def hang_limit_s(self) -> float:
        """How long the step clock may stand still."""
        if self._hang_s is not None:
            return self._hang_s
        if len(self._driver.steps) < _LEAST_STEPS:
            return _FIRST_HANG_S
        return max(HANG_S, _HANG_STEPS * self._driver.steps.median_s)

    @property
    def step(self) -> int:
        """The step begun last; 0 before the first."""
        return max((abs(now.step) for now in self._all_now() if now.leads), default=self.history.last)

    def ranks(self, patterns: Any) -> list[int]:
        """All ranks of the workers that a capture means."""
        return sorted(
            {
                rank
                for worker, role in self._roles.items()
                if patterns.matches(worker)
                for rank in role.ranks
                if patterns.matches(worker, rank)
            }
        )

    def ranks_on(self, node: str, patterns: Any) -> list[int]:
        """Those of them on one node."""
        return sorted(
            {
                rank
                for worker, role in self._roles.items()
                for rank, place in role.ranks.items()
                if place == node and patterns.matches(worker, rank)
            }
        )

    def _all_now(self) -> Iterator[Now]:
        for there in self._now.values():
            yield from there

    def _is_new(self, finding: Anomaly) -> bool:
        if finding.key in self._keys:
            return False
        self._keys.add(finding.key)
        self.findings.append(finding)
        del self.findings[:-_MOST_FINDINGS]
        return True

    def _window(self, node: str, event: WindowMark, seen: bool) -> None:
        key = (event.worker, event.rank, event.backend, event.start)
        if event.event == "opened":
            self._open[key] = _OpenWindow(event, node, seen)
        else:
            begun = self._open.pop(key, None)
            if begun is not None:
                self._closed.append((begun.mark.t_ns, event.t_ns))

    def _close_left(self, t_ns: int) -> None:
        """Windows that nobody closes any more end: a process that was killed tells nothing of them."""
        if not self._open:
            return
        names = self._names
        workers = set(names.values())
        for key, window in list(self._open.items()):
            end_ns = self._left_ns(window, names.keys(), workers, t_ns)
            if end_ns is not None:
                del self._open[key]
                self._closed.append((window.mark.t_ns, end_ns))

    def _left_ns(
        self,
        window: _OpenWindow,
        processes: Container[tuple[str, int]],
        workers: Container[tuple[str, int]],
        t_ns: int,
    ) -> int | None:
        """When a window ended with its process or node; None while it may still be open."""
        mark, heard_ns = window.mark, self._heard_ns[window.node]
        if self._latest_ns - heard_ns > _LOST_NS:
            return heard_ns
        if (window.node, mark.pid) in processes:
            window.seen = True
            return None
        if window.seen or (mark.pid and (mark.worker, mark.rank) in workers):
            return t_ns
        return mark.t_ns + _MOST_OPEN_NS if t_ns - mark.t_ns > _MOST_OPEN_NS else None

    @property
    def _names(self) -> dict[tuple[str, int], tuple[str, int]]:
        """Worker and rank of the processes that tell them, by node and pid."""
        return {
            (node, now.pid): (now.worker, now.rank)
            for node, there in self._now.items()
            for now in there
            if now.worker
        }

    def _who(self, node: str, pid: int) -> tuple[str, int] | None:
        return self._names.get((node, pid))

    def _is_exempt(self, begin: int, end: int) -> bool:
        """Whether a window was open in this time (Unix ns), or has just closed: it proves nothing."""
        return any(window.mark.t_ns <= end for window in self._open.values()) or any(
            opened <= end and begin <= closed + _AROUND_WINDOW_NS for opened, closed in self._closed
        )

    def _step(self, node: str, step: ToldStep) -> list[Anomaly | None]:
        exempt = self._is_exempt(step.begin_ns, step.end_ns)
        self._late.step(node, step)
        found: list[Anomaly | None] = []
        if step.leads:
            self._driver_name = step.worker
            self._moved_ns = max(self._moved_ns, step.end_ns)
            middle = self._driver.steps.median_s if len(self._driver.steps) >= _LEAST_STEPS else 0.0
            phases = {
                name: (phase.seconds, self._driver.phase_median_s(name))
                for name, phase in step.phases.items()
            }
            finding = self._driver.add(step, exempt)
            found.append(finding)
            self.history.add(step, finding is not None)
            if not exempt:
                self.facts.append(StepFact(step.step, step.seconds, middle, phases, step.end_ns))
        role = self._roles.setdefault(step.worker, _Role(RankDetector(step.worker)))
        role.ranks[step.rank] = node
        role.latest.append(step.seconds)
        if step.place > role.judged:
            role.untold.setdefault(step.place, {})[step.rank] = step
            found += self._judge(role, exempt)
        return found

    def _judge(self, role: _Role, exempt: bool) -> list[Anomaly]:
        """The steps of a role that every rank has told, or that are too old to wait for."""
        found: list[Anomaly] = []
        newest_trainer, newest = max(role.untold)
        for place in sorted(role.untold):
            told, (trainer, number) = role.untold[place], place
            is_new = trainer == newest_trainer and number > newest - _LATE_STEPS
            if len(told) < len(role.ranks) and is_new:
                break
            del role.untold[place]
            role.judged = place
            if exempt or any(self._is_exempt(step.begin_ns, step.end_ns) for step in told.values()):
                continue
            seconds = {rank: step.seconds for rank, step in told.items()}
            phases: dict[str, dict[int, float]] = {}
            for rank, step in told.items():
                for name, phase in step.phases.items():
                    phases.setdefault(name, {})[rank] = phase.own_s
            last = max(step.end_ns for step in told.values())
            found += role.detector.add(number, seconds, phases, last)
        return found

    def _machine(self, news: News) -> Iterator[Anomaly | None]:
        t_s = news.t_ns / 1e9
        for gpu, (seconds, bits) in news.throttled.items():
            key = (news.node, gpu)
            detector = self._throttle.setdefault(key, ThrottleDetector(news.node, gpu))
            yield detector.add(t_s, seconds, bits)
        if news.host is not None:
            total = news.host.memory_total_mib
            yield self._memory_of(news.node, "memory").add(t_s, news.host.memory_mib, total)
        for sample in news.gpus:
            watched = self._memory_of(news.node, f"GPU {sample.gpu} memory")
            yield watched.add(t_s, sample.memory_mib, sample.memory_total_mib)

    def _memory_of(self, node: str, what: str) -> MemoryDetector:
        return self._memory.setdefault((node, what), MemoryDetector(node, what))

    # ---- the summary

    def summary(self) -> dict[str, Any]:
        """Everything that `rlprof top` shows."""
        return {
            "schema": SCHEMA,
            "job": self.job,
            "t_ns": time.time_ns(),
            "step": self.step,
            "step_median_s": self._driver.steps.median_s,
            "hang_limit_s": self.hang_limit_s,
            "nodes": {name: _node(news) for name, news in self._nodes.items()},
            "by": next((news.by for news in self._nodes.values() if news is not None and news.by), ""),
            "not_seen": list(
                dict.fromkeys(text for news in self._nodes.values() if news for text in news.not_seen)
            ),
            "roles": [self._role(worker, role) for worker, role in sorted(self._roles.items())]
            + self._silent_roles(),
            "history": self.history.to_dict(),
            "slowest": self._slowest(),
            "windows": [each.mark.__dict__ for each in list(self._open.values())[:_MOST_WINDOWS]],
            "findings": [finding.to_dict() for finding in self.findings],
        }

    def _role(self, worker: str, role: _Role) -> dict[str, Any]:
        there = [now for now in self._all_now() if now.worker == worker]
        return _role_row(worker, len(role.ranks), there, median(role.latest) if role.latest else 0.0)

    def _silent_roles(self) -> list[dict[str, Any]]:
        """Workers that have not ended a step."""
        there: dict[str, list[Now]] = {}
        for now in self._all_now():
            if now.worker not in self._roles:
                there.setdefault(now.worker, []).append(now)
        return [_role_row(worker, len(found), found, 0.0) for worker, found in sorted(there.items())]

    def _slowest(self) -> list[dict[str, Any]]:
        found = [
            (factor, worker, rank, role.ranks.get(rank, ""))
            for worker, role in self._roles.items()
            for rank, factor in role.detector.factors.items()
            if factor > 1.05
        ]
        return [
            {"worker": worker, "rank": rank, "node": node, "factor": round(factor, 3)}
            for factor, worker, rank, node in sorted(found, reverse=True)[:_MOST_SLOW]
        ]


def _role_row(worker: str, ranks: int, there: list[Now], median_s: float) -> dict[str, Any]:
    phases: dict[str, int] = {}
    for now in there:
        name = now.phase or ("between steps" if now.step <= 0 else "in the step")
        phases[name] = phases.get(name, 0) + 1
    return {
        "worker": worker,
        "ranks": ranks,
        "step": max((abs(now.step) for now in there), default=0),
        "phases": dict(sorted(phases.items(), key=lambda item: -item[1])[:4]),
        "median_s": round(median_s, 6),
    }


def _node(news: News | None) -> dict[str, Any]:
    if news is None:
        return {"t_ns": 0, "host": None, "gpus": [], "engines": []}
    return {
        "t_ns": news.t_ns,
        "host": None if news.host is None else news.host.__dict__,
        "gpus": [gpu.__dict__ for gpu in news.gpus],
        "engines": [engine.__dict__ for engine in news.engines],
    }
