"""The whole run as one part of `report.json`: bounded in size whatever the run was."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np

from rlprof_ops.analyze.whole_run.heat import heat_maps
from rlprof_ops.analyze.whole_run.last_requests import ReplicaRequests, read_replicas, rollout_requests
from rlprof_ops.analyze.whole_run.records import (
    Floats,
    Integers,
    Interval,
    ProcessSteps,
    RecordedNode,
    has_records,
    read_all,
)
from rlprof_ops.analyze.whole_run.reward_calls import calls_of
from rlprof_ops.analyze.whole_run.rollout import rollout
from rlprof_ops.analyze.whole_run.run_data import (
    Curve,
    Mark,
    PhaseColumn,
    RecordedFinding,
    Staleness,
    WholeRun,
    longest_phases,
)
from rlprof_ops.analyze.whole_run.sample_groups import staleness_of
from rlprof_ops.analyze.whole_run.tail import long_tail
from rlprof_ops.host import foreign
from rlprof_ops.recorder.detect.phase_words import SEASONAL

MOST_STEPS = 2400  # drawn one by one; longer runs in as many groups
MOST_MARKS = 400
_MOST_PHASES = 64
_MOST_CURVES, _MOST_POINTS = 64, 240


def whole_run(
    root: Path,
    t0_ns: int = 0,
    captured: Sequence[Interval] = (),
    windows: Iterable[tuple[int, str]] = (),
    workers: int = 1,
) -> WholeRun | None:
    """What the recorder of a run folder has kept, None where there is nothing. `captured`: times of the
    captured steps; `windows`: first step and words of each.
    """
    if not root.is_dir() or not has_records(root):
        return None
    nodes = read_all(root, captured, workers)
    stale = staleness_of(root)
    return from_records(nodes, t0_ns, windows, _found(root), read_replicas(root), stale)


def from_records(
    nodes: Sequence[RecordedNode],
    t0_ns: int = 0,
    windows: Iterable[tuple[int, str]] = (),
    found: Sequence[RecordedFinding] = (),
    replicas: Sequence[ReplicaRequests] = (),
    staleness: Staleness | None = None,
) -> WholeRun | None:
    """The same of records that have been read."""
    lives = _driver(nodes)
    if not lives:
        return None
    driver, restarts = _joined(lives)
    edges = _edges(len(driver.step))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # of steps that no rank has told
        heat = heat_maps(nodes)
    marks = [
        *(Mark(kind="finding", step=each.step, text=each.text) for each in found),
        *restarts,
        *_seasons(driver),
        *(Mark(kind="window", step=step, text=text) for step, text in windows),
    ]
    return WholeRun(
        worker=driver.worker,
        count=len(driver.step),
        median_ms=round(float(np.median(driver.seconds)) * 1e3, 3),
        steps=driver.step[edges].tolist(),
        counts=np.diff([*edges, len(driver.step)]).tolist(),
        begin_ms=((driver.begin_ns[edges] - driver.begin_ns[0]) // 1_000_000).tolist(),
        least_ms=_ms(np.minimum.reduceat(driver.seconds, edges)),
        middle_ms=_ms(np.array([np.median(part) for part in np.split(driver.seconds, edges[1:])])),
        most_ms=_ms(np.maximum.reduceat(driver.seconds, edges)),
        phases=_phases(driver, edges),
        marks=sorted(_fewer(marks), key=lambda mark: mark.step),
        heat=heat,
        curves=_curves(nodes, t0_ns),
        tail=long_tail(driver, nodes),
        rollout=rollout(driver, nodes),
        requests=rollout_requests(driver, replicas),
        found=list(found[:MOST_MARKS]),
        calls=calls_of(nodes),
        staleness=staleness,
    )


def driver_of(nodes: Sequence[RecordedNode]) -> ProcessSteps | None:
    """The history of the process that leads."""
    lives = _driver(nodes)
    return _joined(lives)[0] if lives else None


def _driver(nodes: Sequence[RecordedNode]) -> list[ProcessSteps]:
    """The lives of the process that leads, in order; where none does, those of the first rank that tells
    steps.
    """
    told = [process for node in nodes for process in node.processes if len(process.step)]
    leading = [process for process in told if process.leads]
    if not leading and told:
        first = min(told, key=lambda process: (process.worker, process.rank))
        leading = [
            process for process in told if (process.worker, process.rank) == (first.worker, first.rank)
        ]
    longest = max(leading, key=lambda process: len(process.step), default=None)
    same = [process for process in leading if longest is not None and process.worker == longest.worker]
    return sorted(same, key=lambda process: int(process.begin_ns[0]))


def _joined(lives: Sequence[ProcessSteps]) -> tuple[ProcessSteps, list[Mark]]:
    """One history of a process that was restarted: where it went back, the later life counts."""
    restarts = [
        Mark(kind="restart", step=int(life.step[0]), text=f"{life.worker} began again, pid {life.pid}")
        for life in lives[1:]
    ]
    if len(lives) == 1:
        return lives[0], restarts
    step = np.concatenate([life.step for life in lives])
    _, last = np.unique(step[::-1], return_index=True)
    kept = len(step) - 1 - last
    names = dict.fromkeys(name for life in lives for name in life.phases)

    def column(parts: list[Floats]) -> Floats:
        return np.concatenate(parts)[kept]

    first = lives[0]
    return ProcessSteps(
        first.node, first.worker, first.rank, lives[-1].pid, first.leads, step[kept],
        np.concatenate([life.begin_ns for life in lives])[kept],
        column([life.seconds for life in lives]), column([life.busy_s for life in lives]),
        column([life.generated_s for life in lives]),
        {name: column([life.phases.get(name, np.zeros(len(life.step))) for life in lives]) for name in names},
    ), restarts  # fmt: skip


def _edges(count: int) -> Integers:
    groups = min(count, MOST_STEPS)
    return np.arange(groups, dtype=np.int64) * count // groups


def _ms(seconds: Floats) -> list[float]:
    return [round(value, 1) for value in (seconds * 1e3).tolist()]


def _phases(driver: ProcessSteps, edges: Integers) -> list[PhaseColumn]:
    counts = np.diff([*edges, len(driver.step)])
    found = [
        PhaseColumn(name, _ms(np.add.reduceat(own, edges) / counts)) for name, own in driver.phases.items()
    ]
    return longest_phases(found, counts.tolist(), _MOST_PHASES)


def _seasons(driver: ProcessSteps) -> list[Mark]:
    """Steps with work that is not of every step: evaluation, checkpoints."""
    return [
        Mark(kind="checkpoint", step=step, text=name)
        for name, own in driver.phases.items()
        if SEASONAL.search(name) and 0 < np.count_nonzero(own) < len(own)
        for step in driver.step[own > 0].tolist()
    ]


def _found(root: Path) -> list[RecordedFinding]:
    # Imported only where a job was recorded: it brings asyncio and urllib with it.
    from rlprof_ops.recorder.head_recorder import FINDINGS, FOLDER, read_rows

    rows = read_rows(root / FOLDER / FINDINGS, ("text", "step"))
    return [_recorded(row) for row in rows if isinstance(row["step"], int)]


def _recorded(row: Mapping[str, object]) -> RecordedFinding:
    ranks, evidence = foreign.a_list(row.get("ranks")), foreign.an_object(row.get("evidence"))
    seconds, peers, waited = (evidence.get(key) for key in ("seconds", "peers_s", "waited_s"))
    return RecordedFinding(
        kind=foreign.text(row.get("kind")),
        text=str(row["text"]),
        step=foreign.whole(row["step"]) or 0,
        worker=foreign.text(row.get("worker")),
        rank=foreign.whole(ranks[0]) if len(ranks) == 1 else None,
        phase=foreign.text(row.get("phase")),
        since=foreign.whole(evidence.get("since_step")),
        seconds=seconds if isinstance(seconds, float) else 0.0,
        peers_s=peers if isinstance(peers, float) else 0.0,
        waited_s=waited if isinstance(waited, float) else 0.0,
    )


def _fewer(marks: list[Mark]) -> list[Mark]:
    """At most so many; of checkpoints, which follow a rhythm, first."""
    order = {"restart": 0, "finding": 1, "window": 2, "checkpoint": 3}
    return sorted(dict.fromkeys(marks), key=lambda mark: order[mark.kind])[:MOST_MARKS]


def _curves(nodes: Sequence[RecordedNode], t0_ns: int) -> list[Curve]:
    """Every node's GPUs and engines in turn, until there are enough."""
    found: list[Curve] = []
    depth = max((len(node.curves) for node in nodes), default=0)
    for place in range(depth):
        for node in nodes:
            if place < len(node.curves) and len(found) < _MOST_CURVES:
                of, columns = list(node.curves.items())[place]
                thin = columns[:, :: 1 + columns.shape[1] // _MOST_POINTS]
                t_ms = np.rint((thin[0] - t0_ns) / 1e6).astype(np.int64).tolist()
                figures = np.rint(thin[1:]).astype(np.int64).tolist()
                found.append(Curve(node.node, of, t_ms, figures))
    return sorted(found, key=lambda curve: (curve.node, curve.of))
