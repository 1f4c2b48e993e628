"""Simulated runs, each with one planted cause whose cost is known: the run is simulated again without it."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
from tests.analyze.as_data import answer_of, data_of
from tests.analyze.causes.dp_groups import write_groups
from tests.analyze.causes.host_faults import HostFaults
from tests.analyze.causes.loops import Loop, usual_loop
from tests.analyze.causes.overlapping import asynchronous, streamed
from tests.analyze.pipelines import write_pipeline

from rlprof_ops.analyze.output.answer import build

Answer = dict[str, Any]
Named = Callable[[Answer, dict[str, Any]], bool]
GC = ("user_annotation", "Python GC")
LOADER = ("user_annotation", "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__")
NOISES = ("white", "AR(1)", "heavy tails")


@dataclass(frozen=True)
class Planted:
    """What the report says of a run, what mending the cause would really save a step, and whether a finding
    is about that cause. `truth_ns` None: no number is expected.
    """

    answer: Answer
    truth_ns: float | None
    named: Named

    def saves_ns(self) -> float | None:
        """As the finding about the cause has it."""
        found = (f["saves_ns"] for f in self.answer["findings"] if self.named(self.answer, f))
        return next(found, None)


def noisy_loop(seed: int, spread: float = 0.04, **sizes: int) -> Loop:
    """Ranks' times from step to step by one of three kinds of noise, which the seed chooses; each collective
    piece of a phase has half of that for itself.
    """
    sizes = {"rollout": 4, "policy": 4, "steps": 6} | sizes
    loop = usual_loop(seed, noise=spread / 2, **sizes)
    rng, kind = np.random.default_rng(1000 + seed), NOISES[seed % len(NOISES)]
    before: dict[tuple[str, str, int], float] = {}
    for (_, worker, phase, rank), pieces in sorted(loop.work.items()):
        drawn = rng.standard_t(3) / 3**0.5 if kind == "heavy tails" else rng.standard_normal()
        if kind == "AR(1)":
            drawn = 0.6 * before.get((worker, phase, rank), drawn) + 0.8 * drawn
        before[worker, phase, rank] = drawn
        usual = 0.25 if phase == "weight_sync" else 1.0  # else the sync alone is dearer than some causes
        pieces[:] = [max(round(usual * ns * (1 + spread * drawn)), 1000) for ns in pieces]
    return loop


def told(loop: Loop) -> Answer:
    summaries = loop.summaries()
    return data_of(build(Path("/nonexistent"), [s.report for s in summaries], summaries))


def read(write: Callable[[Path], object]) -> Answer:
    with tempfile.TemporaryDirectory() as folder:
        write(Path(folder))
        return answer_of(Path(folder), jobs=1, cache=False)


def _changed(loop: Loop, named: Named, change: Callable[[Loop], None]) -> Planted:
    before = loop.length()
    change(loop)
    return Planted(told(loop), (loop.length() - before) / loop.steps, named)


def _step_ns(answer: Answer) -> float:
    return fmean(row["duration_ns"] for row in answer["steps"])


def slow_rank(seed: int) -> Planted:
    """25 to 50 % longer in training."""
    mine = seed % 4

    def change(loop: Loop) -> None:
        for (_, _, phase, rank), pieces in loop.work.items():
            if phase == "train" and rank == mine:
                pieces[:] = [round((1.25 + 0.25 * (seed % 2)) * ns) for ns in pieces]

    def named(answer: Answer, finding: dict[str, Any]) -> bool:
        rank = None if finding["rank"] is None else answer["ranks"][finding["rank"]]["rank"]
        return (finding["kind"], finding["phase"], rank) == ("straggler", "train", mine)

    return _changed(noisy_loop(seed), named, change)


def slow_node(seed: int) -> Planted:
    """One of two to four nodes of eight ranks, 25 % longer in training."""
    nodes = 2 + seed % 3
    loop = noisy_loop(seed, policy=8 * nodes)
    loop.ranks_a_node, mine = 8, seed % nodes

    def change(loop: Loop) -> None:
        for (_, _, phase, rank), pieces in loop.work.items():
            if phase == "train" and rank // 8 == mine:
                pieces[:] = [round(1.25 * ns) for ns in pieces]

    def named(answer: Answer, finding: dict[str, Any]) -> bool:
        return finding["kind"] == "straggler" and finding["text"].startswith(f"Node n{mine} is slow in train")

    return _changed(loop, named, change)


def slow_stage(seed: int) -> Planted:
    """One of four stages computes 30 to 60 % longer."""
    rng, mine = np.random.default_rng(seed), seed % 4
    computes = [100.0 * (1 + 0.02 * rng.standard_normal()) for _ in range(4)]
    computes[mine] *= 1.3 + 0.3 * rng.random()

    def named(answer: Answer, finding: dict[str, Any]) -> bool:
        return finding["kind"] == "pipeline" and f"Stage {mine} computes" in finding["text"]

    return Planted(
        read(lambda folder: write_pipeline(folder, computes, 8, data_parallel=2, steps=4)), None, named
    )


def slow_group(seed: int) -> Planted:
    """The links of one of four groups carry 1.7 to 6 of 33 GB/s."""
    slow = {seed % 4: 1.7 + 4.3 * (seed % 5) / 4}
    answer = read(lambda folder: write_groups(folder, seed, slow=slow))
    healthy = read(lambda folder: write_groups(folder, seed))
    mine = [rank for rank in range(16) if rank % 4 == seed % 4]

    def named(answer: Answer, finding: dict[str, Any]) -> bool:
        return finding["kind"] == "slow_group" and answer["ranks"][finding["rank"]]["rank"] == mine[0]

    return Planted(answer, _step_ns(answer) - _step_ns(healthy), named)


def long_tail(seed: int) -> Planted:
    """In each step another rank of rollout takes 60 % longer."""

    def change(loop: Loop) -> None:
        for (step, _, phase, rank), pieces in loop.work.items():
            if phase == "generation" and rank == (step + seed) % 4:
                pieces[0] += 250_000

    def named(_: Answer, finding: dict[str, Any]) -> bool:
        return (finding["kind"], finding["phase"]) == ("tail", "generation")

    return _changed(noisy_loop(seed), named, change)


def exposed_sync(seed: int) -> Planted:
    """Weights take 200 µs longer to hand over: what hiding all of it would save."""
    loop = noisy_loop(seed)
    for (_, worker, phase, _), pieces in loop.work.items():
        if phase == "weight_sync" and worker == "rollout":
            pieces[0] += 200_000
    gone = {k: [1 for _ in w] if k[2] == "weight_sync" else w for k, w in loop.work.items()}

    def named(_: Answer, finding: dict[str, Any]) -> bool:
        return bool(finding["kind"] == "weight_sync")

    return Planted(told(loop), (loop.length() - loop.length(gone)) / loop.steps, named)


def _host(seed: int, named: Named, **planted: Any) -> Planted:
    usual = {key: planted[key] for key in ("kernels", "kernel_ms") if key in planted}
    with tempfile.TemporaryDirectory() as folder:
        length_ms = HostFaults(seed, **planted).write(Path(folder) / "run")
        answer = answer_of(Path(folder) / "run", jobs=1, cache=False)
        even_ms = HostFaults(seed, **usual).write(Path(folder) / "even")
    return Planted(answer, 1e6 * (length_ms - even_ms), named)


def launch_gaps(seed: int) -> Planted:
    """300 kernels of 120 µs a step, each launched 60 µs after the one before has ended."""

    def named(_: Answer, finding: dict[str, Any]) -> bool:
        return (finding["kind"], finding["worker"]) == ("host", "policy")

    found = _host(seed, named, kernels=100, kernel_ms=0.12, gaps_ms=dict.fromkeys(range(4), 0.06))
    return Planted(found.answer, None, named)


def loader(seed: int) -> Planted:
    """All ranks wait 40 to 80 ms for data in each step."""

    def named(_: Answer, finding: dict[str, Any]) -> bool:
        return finding["kind"] == "pause" and "waits for data" in finding["text"]

    length = 40.0 + 10 * (seed % 5)
    return _host(seed, named, why=LOADER, pauses={(r, s): length for r in range(4) for s in range(1, 7)})


def garbage(seed: int) -> Planted:
    """120 ms in every second step: of one rank, of another each time, or of all."""
    steps = range(1 + seed % 2, 7, 2)
    whose = (lambda step: [seed % 4], lambda step: [(step + seed) % 4], lambda step: range(4))[seed % 3]

    def named(_: Answer, finding: dict[str, Any]) -> bool:
        return finding["kind"] == "pause" and "collects garbage" in finding["text"]

    return _host(seed, named, why=GC, pauses={(r, s): 120.0 for s in steps for r in whose(s)})


CAUSES = {
    "slow rank": slow_rank,
    "slow node": slow_node,
    "slow stage": slow_stage,
    "slow group": slow_group,
    "long tail": long_tail,
    "exposed weight sync": exposed_sync,
    "launch gaps": launch_gaps,
    "data loader": loader,
    "garbage collection": garbage,
}


def without_cause(seed: int) -> Answer:
    """One of five kinds of run in turn."""
    kind = seed % 5
    if kind == 0:
        return read(lambda folder: HostFaults(seed).write(folder))
    if kind == 1:
        return read(lambda folder: write_groups(folder, seed))
    if kind == 2:
        loop = noisy_loop(seed, policy=16)
        loop.ranks_a_node = 8
        return told(loop)
    return told(asynchronous(seed, steps=10) if kind == 3 else noisy_loop(seed))


def with_correlated_noise(seed: int) -> Answer:
    """No cause, and ranks whose noise is alike from step to step (AR(1), 0.6): six steps hardly tell it from
    a slow rank.
    """
    return told(noisy_loop(len(NOISES) * seed + NOISES.index("AR(1)")))


def _shorter(loop: Loop, phase: str) -> dict[Any, list[int]]:
    return {k: [round(0.8 * x) for x in w] if k[2] == phase else w for k, w in loop.work.items()}


def _faster(answer: Answer, phase: str) -> float | None:
    found = (w["saves_ns"] for w in answer["what_if"] if (w["kind"], w["phase"]) == ("faster", phase))
    return next(found, None)


def faster(seed: int, kind: str, phase: str) -> tuple[float | None, float]:
    """What a phase 20 % faster saves in a loop, as it is told and in truth."""
    if kind == "streamed":
        loop: Loop = streamed(seed)
    elif kind == "linear":
        loop = noisy_loop(seed)
    else:
        more = {"generation": 420.0} if phase == "generation" else {}
        over = asynchronous(seed, steps=10, staleness=int(kind[-1]), **more)
        return _faster(told(over), phase), over.period() - over.period(_shorter(over, phase))
    return _faster(told(loop), phase), (loop.length() - loop.length(_shorter(loop, phase))) / loop.steps


LOOPS = (
    ("linear", "generation"),
    ("linear", "train"),
    ("streamed", "generation"),
    ("staleness 1", "generation"),
    ("staleness 1", "train"),
    ("staleness 3", "generation"),
    ("staleness 2", "train"),
)
