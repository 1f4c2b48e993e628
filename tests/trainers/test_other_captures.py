"""torch and memory windows of unmodified trainers' workers, and of the vLLM engine that works for them.

Each is a run of some minutes beside those of CI, so it is taken where RLPROF_TESTS=long asks for it.
"""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from tests.real_nsys import nvtx_ranges
from tests.trainers.local_job import LocalJob

pytestmark = [pytest.mark.trainers, pytest.mark.long, pytest.mark.timeout(1500)]
RUN_S = 1200
LAST_WORDS = {"verl": "", "nemo_rl": "Max number of steps has been reached"}
# Worker that trains, worker whose engine generates.
WORKERS = {
    "verl": ("actor", "rollout"),
    "nemo_rl": ("dtensor_policy_worker", "vllm_generation_worker"),
}


@pytest.mark.parametrize("trainer", WORKERS)
def test_torch_and_memory_windows_of_its_workers(trainer: str, tmp_path: Path):
    workers = ", ".join(WORKERS[trainer])
    (tmp_path / "profile.yaml").write_text(
        f"captures:\n"
        f'  - {{backend: torch, workers: [{workers}], steps: "2"}}\n'
        f'  - {{backend: memory, workers: [{workers}], steps: "2", options: {{host: true}}}}\n'
    )
    job = LocalJob.take(
        trainer,
        tmp_path / "job",
        3,
        RUN_S,
        last_words=LAST_WORDS[trainer],
        GPUS_PER_NODE="1",
        RLPROF_REQUEST=str(tmp_path / "profile.yaml"),
    )
    check(job.run, trainer, job.states())


def check(run: Path, trainer: str, states: dict[str, str]) -> None:
    trains, generates = WORKERS[trainer]
    assert states == {
        f"{backend}/{worker}/rank0/step2-2": "ok"
        for backend in ("torch", "memory")
        for worker in (trains, generates)
    }
    ours, operators = trace(run, trains)
    assert "step 2" in ours and any("Backward" in name for name in operators), sorted(operators)[:40]
    ours, operators = trace(run, generates)
    assert {"step 2", "generation"} <= ours
    assert any(name.startswith(("aten::", "_C::", "vllm::")) for name in operators), sorted(operators)[:40]
    for worker in (trains, generates):
        [report] = (run / "profiles" / "memory" / worker / "rank0").glob("*.host-memory.json.gz")
        with gzip.open(report) as packed:
            assert len(json.load(packed)["samples"]) >= 2, report


def trace(run: Path, worker: str) -> tuple[set[str], set[str]]:
    """Names of the ranges and of the operators in the worker's torch trace."""
    [report] = (run / "profiles" / "torch" / worker / "rank0").glob("*.pt.trace.json.gz")
    with gzip.open(report) as packed:
        events: list[dict[str, Any]] = json.load(packed)["traceEvents"]

    def named(kind: str) -> set[str]:
        return {event["name"] for event in events if event.get("cat") == kind}

    return named("user_annotation"), named("cpu_op")


@pytest.mark.nsys
def test_nsight_windows_of_the_phases_of_its_workers(tmp_path: Path):
    """Each task of verl's actor is a window of its session; the supervisor, which knows none, opens none."""
    job = LocalJob.take(
        "verl",
        tmp_path / "job",
        3,
        RUN_S,
        GPUS_PER_NODE="1",
        RLPROF_WORKERS="actor",
        RLPROF_STEPS="2",
        RLPROF_EACH="phase",
        RLPROF_OPTIONS='{"t": "nvtx"}',
    )
    states = job.states()
    phases = {capture.rpartition("/")[2] for capture, state in states.items() if state == "ok"}
    assert {"actor_compute_log_prob", "actor_update", "update_weights"} <= phases, (
        states,
        job.output[-4000:],
    )
    assert set(states.values()) == {"ok"}, states
    folder = job.run / "profiles" / "nsight" / "actor" / "rank0"
    for phase in phases:
        [report] = folder.glob(f"actor_rank0_step2-2_{phase.replace('_', '-')}_*.nsys-rep")
        assert phase in nvtx_ranges(report, tmp_path)
