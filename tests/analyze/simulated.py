"""Answers of simulated runs of any number of ranks, made of summaries, without files."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

from tests.analyze.as_data import data_of

from rlprof_ops.analyze.metrics.kernels import NameTotal
from rlprof_ops.analyze.metrics.phases import Segment, stretches
from rlprof_ops.analyze.output.answer import build
from rlprof_ops.analyze.report_model import GpuTimes, IdleSplit, MemoryPeak
from rlprof_ops.analyze.run.identity import ReportFile
from rlprof_ops.analyze.run.process_summary import DeviceTimes, PhaseTime, StepTime, Summary

MS = 1_000_000
T0 = 1_790_857_026_000_000_000
STEP = 100 * MS
PLANS = {
    "policy_worker": (("ref_logprob", 42, 8), ("logprob", 50, 4), ("train", 55, 35), ("weight_sync", 91, 5)),
    "vllm_generation_worker": (("generation", 1, 40), ("weight_sync", 92, 6)),
}


def simulated_summary(worker: str, rank: int, steps: int, slow: bool, rng: random.Random) -> Summary:
    step_times, phases, segments = [], [], []
    for step in range(1, steps + 1):
        begin = T0 + step * STEP
        for phase, start, length in PLANS[worker]:
            a, b = begin + start * MS, begin + (start + length) * MS - rng.randrange(MS)
            talk = 0 if slow or phase != "train" else 6 * MS + rng.randrange(MS)
            segments.append(Segment(step, phase, a, b))
            when = stretches(segments[-1:])[phase]
            phases.append(PhaseTime(step, phase, b - a, 1, talk, _gpu(b - a, talk), _idle(b - a, talk), when))
        step_times.append(
            StepTime(step, begin, begin + STEP - MS, True, _gpu(STEP - MS, 6 * MS), _idle(STEP - MS, 6 * MS))
        )
    host = f"gpu{rank // 8:03d}"
    report = ReportFile(
        f"profiles/torch/{worker}/rank{rank}/{worker}_rank{rank}_step1-{steps}_{host}_{rank}.pt.trace.json.gz",
        "torch",
        worker,
        rank,
        host,
        rank,
        1,
        steps + 1,
        None,
        19_000_000,
    )
    window = steps * STEP
    kernels = tuple(
        NameTotal(PLANS[worker][i % 2][0], f"kernel_{i} <{worker}>", 100 + i, (i + 1) * MS, 2 * MS)
        for i in range(40)
    )
    return Summary(
        report=report,
        kind="torch",
        host=host,
        pid=rank,
        rank=rank,
        on_utc=True,
        events=1_000_000,
        damaged=0,
        truncated="",
        seconds=1.5,
        start=T0 + STEP,
        end=T0 + STEP + window,
        details={},
        steps=tuple(step_times),
        phases=tuple(phases),
        drawn=tuple(segments),
        devices=(
            DeviceTimes(
                rank % 8,
                "NVIDIA H100",
                T0 + STEP,
                T0 + STEP + window,
                _gpu(window, 6 * MS * steps),
                _idle(window, 6 * MS * steps),
                4000,
            ),
        ),
        kernels=kernels,
        ops=kernels[:5],
        collectives=(),
        memory=(MemoryPeak(rank % 8, "train", 60 << 30, 70 << 30),),
        collective_events=(),
        collectives_seen=True,
    )


def _gpu(window: int, talk: int) -> GpuTimes:
    compute = window // 2
    return GpuTimes(window, compute, talk, talk, 0, 0, compute + talk, window - compute - talk)


def _idle(window: int, talk: int) -> IdleSplit:
    idle = window - window // 2 - talk
    return IdleSplit(idle // 4, idle // 4, idle // 4, idle - 3 * (idle // 4))


def simulated_summaries(ranks: int, steps: int, slow_rank: int | None = None) -> list[Summary]:
    rng = random.Random(1)
    training = max(ranks - ranks // 4, 1)
    found = [simulated_summary("policy_worker", r, steps, r == slow_rank, rng) for r in range(training)]
    return found + [
        simulated_summary("vllm_generation_worker", r, steps, False, rng) for r in range(ranks - training)
    ]


def simulated_answer(ranks: int, steps: int, slow_rank: int | None = None) -> dict[str, Any]:
    summaries = simulated_summaries(ranks, steps, slow_rank)
    return data_of(build(Path("/nonexistent"), [s.report for s in summaries], summaries))
