"""Simulated runs, each with one planted cause whose cost is known: the run is simulated again without it."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any, TypeVar

import numpy as np
from tests.analyze.as_data import answer_of, data_of
from tests.analyze.causes.dp_groups import write_groups
from tests.analyze.causes.host_faults import HostFaults
from tests.analyze.causes.loops import Loop, branched_loop, usual_loop
from tests.analyze.causes.overlapping import Asynchronous, asynchronous, streamed
from tests.analyze.pipelines import SLOW_US, write_pipeline

from rlprof_ops.analyze.output.answer import build

Answer = dict[str, Any]
Named = Callable[[Answer, dict[str, Any]], bool]
GC = ("user_annotation", "Python GC")
LOADER = ("user_annotation", "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__")
CORRELATED = {"AR(1) 0.5": 0.5, "AR(1) 0.8": 0.8}  # of neighbouring steps
NOISES = ("white", *CORRELATED, "heavy tails")
L = TypeVar("L", bound=Loop)


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


def with_noise(loop: L, seed: int, kind: str, spread: float = 0.04) -> L:
    """The loop with a noise of `spread` of each rank's phases from step to step."""
    rng, rho = np.random.default_rng(1000 + seed), CORRELATED.get(kind, 0.0)
    before: dict[tuple[str, str, int], float] = {}
    for (_, worker, phase, rank), pieces in sorted(loop.work.items()):
        drawn = rng.standard_t(3) / 3**0.5 if kind == "heavy tails" else rng.standard_normal()
        drawn = rho * before.get((worker, phase, rank), drawn) + (1 - rho**2) ** 0.5 * drawn
        before[worker, phase, rank] = drawn
        pieces[:] = [max(round(ns * (1 + spread * drawn)), 1000) for ns in pieces]
    return loop


def noisy_loop(seed: int, kind: str = "", spread: float = 0.04, **sizes: int) -> Loop:
    """A linear loop with one kind of noise, which the seed chooses where it is not told; each collective
    piece of a phase has half of that for itself.
    """
    sizes = {"rollout": 4, "policy": 4, "steps": 6} | sizes
    loop = usual_loop(seed, noise=spread / 2, **sizes)
    return with_noise(with_short_sync(loop), seed, kind or NOISES[seed % len(NOISES)], spread)


def with_short_sync(loop: L) -> L:
    """The weight sync alone would be dearer than some causes."""
    for (_, _, phase, _), pieces in loop.work.items():
        if phase == "weight_sync":
            pieces[:] = [ns // 4 for ns in pieces]
    return loop


def told(loop: Loop) -> Answer:
    summaries = loop.summaries()
    return data_of(build(Path("/nonexistent"), [s.report for s in summaries], summaries))


def read(write: Callable[[Path], object]) -> Answer:
    with tempfile.TemporaryDirectory() as folder:
        write(Path(folder))
        return answer_of(Path(folder), jobs=1, cache=False)


def _changed(loop: Loop, named: Named, change: Callable[[Loop], None]) -> Planted:
    before = a_step(loop)
    change(loop)
    return Planted(told(loop), a_step(loop) - before, named)


def a_step(loop: Loop, work: dict[Any, list[int]] | None = None) -> float:
    """What a step takes, ns."""
    return loop.period(work) if isinstance(loop, Asynchronous) else loop.length(work) / loop.steps


def _step_ns(answer: Answer) -> float:
    return fmean(row["duration_ns"] for row in answer["steps"])


def slow_rank(seed: int, loop: Loop | None = None) -> Planted:
    """25 to 50 % longer in training; of another loop half as long again."""
    mine, times = seed % 4, 1.25 + 0.25 * (seed % 2 or loop is not None)

    def change(loop: Loop) -> None:
        for (_, _, phase, rank), pieces in loop.work.items():
            if phase == "train" and rank == mine:
                pieces[:] = [round(times * ns) for ns in pieces]

    def named(answer: Answer, finding: dict[str, Any]) -> bool:
        rank = None if finding["rank"] is None else answer["ranks"][finding["rank"]]["rank"]
        return (finding["kind"], finding["phase"], rank) == ("straggler", "train", mine)

    return _changed(loop or noisy_loop(seed), named, change)


def skewed(seed: int) -> Planted:
    """On two nodes whose clocks are several steps apart."""
    loop = noisy_loop(seed)
    loop.ranks_a_node, loop.skew_ns = 2, {"n1": (-1) ** seed * 5_000_000}
    return slow_rank(seed, loop)


def a_peer_is_lost(seed: int) -> Planted:
    """The report of another rank never came."""
    loop = noisy_loop(seed, policy=8)
    loop.lost = frozenset({("policy", seed % 4 + 4)})
    return slow_rank(seed, loop)


def slow_rank_is_lost(seed: int) -> Planted:
    """Its own report never came: nobody can name it, but all can say who is not there."""
    mine = seed % 4

    def named(_: Answer, finding: dict[str, Any]) -> bool:
        return bool(finding["kind"] == "coverage") and f"all but rank {mine}:" in finding["text"]

    def write(folder: Path) -> None:
        HostFaults(seed, slower={mine: 1.4}).write(folder)
        for path in (folder / f"profiles/torch/policy/rank{mine}").iterdir():
            path.unlink()

    return Planted(read(write), None, named)


def slow_in_three_ways(seed: int) -> Planted:
    """Of tensor-, pipeline- and data-parallel ranks (2 x 2 x 2)."""
    mine, rng = seed % 8, np.random.default_rng(seed)
    computes = [100.0 * (1 + 0.02 * rng.standard_normal())] * 2

    def named(answer: Answer, finding: dict[str, Any]) -> bool:
        rank = None if finding["rank"] is None else answer["ranks"][finding["rank"]]["rank"]
        return (finding["kind"], finding["phase"], rank) == ("straggler", "train", mine)

    def write(folder: Path) -> None:
        write_pipeline(folder, computes, 8, data_parallel=4, steps=4, slow_rank=mine)

    return Planted(read(write), 1000.0 * SLOW_US, named)


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
        return bool(finding["text"].startswith(f"Node n{mine} is slow in train"))

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
        return bool(finding["kind"] == "slow_group" and answer["ranks"][finding["rank"]]["rank"] == mine[0])

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


def loop_of(kind: str, seed: int, noise: str, **means: int) -> Loop:
    """A loop of one of seven kinds."""
    if kind in ("linear", "two nodes"):
        loop = noisy_loop(seed, noise, policy=16 if kind == "two nodes" else 4)
        loop.ranks_a_node = 8
        return loop
    if kind == "branch":
        return with_noise(with_short_sync(branched_loop(seed, **means)), seed, noise)
    if kind == "streamed":
        return with_noise(streamed(seed, noise=0.01), seed, noise)
    pooled = kind == "fully asynchronous"
    return with_noise(
        asynchronous(seed, 4 if pooled else int(kind[-1]), 10, 0.01, pooled, **means), seed, noise
    )


KINDS = ("linear", "two nodes", "branch", "streamed", "staleness 1", "staleness 3", "fully asynchronous")


def _slow_in(kind: str) -> Callable[[int], Planted]:
    return lambda seed: slow_rank(seed, loop_of(kind, seed, NOISES[seed % len(NOISES)]))


CAUSES = {
    "slow rank": slow_rank,
    **{f"slow rank, {kind}": _slow_in(kind) for kind in KINDS[2:]},
    "slow rank, TP x PP x DP": slow_in_three_ways,
    "slow rank, skewed clocks": skewed,
    "slow rank, a peer's report lost": a_peer_is_lost,
    "slow rank, its report lost": slow_rank_is_lost,
    "slow node": slow_node,
    "slow stage": slow_stage,
    "slow group": slow_group,
    "long tail": long_tail,
    "exposed weight sync": exposed_sync,
    "launch gaps": launch_gaps,
    "data loader": loader,
    "garbage collection": garbage,
}


def without_cause(seed: int, noise: str) -> Answer:
    """One of the loops in turn; of white noise, two made of traces too."""
    turn = seed % (len(KINDS) + 2 * (noise == "white"))
    if turn == len(KINDS):
        return read(lambda folder: HostFaults(seed).write(folder))
    if turn > len(KINDS):
        return read(lambda folder: write_groups(folder, seed))
    return told(loop_of(KINDS[turn], seed, noise))


def _shorter(loop: Loop, phase: str) -> dict[Any, list[int]]:
    return {k: [round(0.8 * x) for x in w] if k[2] == phase else w for k, w in loop.work.items()}


def _faster(answer: Answer, phase: str) -> float | None:
    found = (w["saves_ns"] for w in answer["what_if"] if (w["kind"], w["phase"]) == ("faster", phase))
    return next(found, None)


def faster(seed: int, kind: str, phase: str) -> tuple[float | None, float]:
    """What a phase 20 % faster saves in a loop, as it is told and in truth."""
    overlaps = kind.startswith(("staleness", "fully"))
    means = {"generation": 420} if overlaps and phase == "generation" else {}
    loop = loop_of(kind, seed, NOISES[seed % len(NOISES)], **means)
    return _faster(told(loop), phase), a_step(loop) - a_step(loop, _shorter(loop, phase))


LOOPS = (
    ("linear", "generation"),
    ("linear", "train"),
    ("branch", "generation"),
    ("branch", "train"),
    ("branch", "reward"),
    ("streamed", "generation"),
    ("staleness 1", "generation"),
    ("staleness 1", "train"),
    ("staleness 3", "generation"),
    ("staleness 2", "train"),
    ("fully asynchronous", "generation"),
    ("fully asynchronous", "train"),
)
