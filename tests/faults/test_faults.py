"""The fault matrix on the sandbox: path by path, with both backends in every job.

`make test` runs the short part; RLPROF_FAULTS=all (make test-faults) all of it. RLPROF_FAULTS_TABLE=<file> writes the
table of the run, which is docs/faults.md.
"""

from __future__ import annotations

import os
import re
import time
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.faults.cells import CELLS, Cell, finish
from tests.faults.job import AgentLost, Job, left_behind, submit
from tests.needs import need
from tests.sandbox import JobState, Sandbox

ALL = os.environ.get("RLPROF_FAULTS") == "all"
FIRST = (2, 4)
SECOND = (9, 11)
pytestmark = [pytest.mark.slurm, pytest.mark.nsys, pytest.mark.ray, pytest.mark.torch]


@dataclass
class Row:
    """One line of the table."""

    cell: Cell
    state: str
    first: str
    second: str
    reason: str
    seconds: float


ROWS: list[Row] = []


@pytest.fixture(scope="module")
def box():
    need("slurm")
    with Sandbox.up(nodes=3, kill_wait=30) as sandbox:
        yield sandbox
    if path := os.environ.get("RLPROF_FAULTS_TABLE"):
        Path(path).write_text(table(ROWS))


@pytest.fixture
def slurm(box):
    box.heal()
    return box


@pytest.mark.timeout(1500)
@pytest.mark.parametrize("cell", [cell for cell in CELLS if cell.short or ALL], ids=lambda cell: cell.name.replace(" ", "-"))
def test_what_had_ended_is_home_and_the_rest_is_explained(slurm, cell):
    job, state, seconds = bring_to_its_end(slurm, cell)

    clean(slurm, cell)
    manifest = job.harvest()
    captures = {(capture.backend, capture.rank, capture.start): capture for capture in manifest.captures}
    first = {key: capture.state for key, capture in captures.items() if key[2] == FIRST[0]}
    second = [capture for key, capture in captures.items() if key[2] == SECOND[0]]
    shown = "\n".join(f"{capture.id} {capture.state} {capture.reason}" for capture in manifest.captures)
    ROWS.append(Row(cell, f"{state.state} {state.exit_code}:{state.signal}", words(list(first.values())), words([each.state for each in second]),
                    "; ".join(sorted({each.reason for each in second if each.reason})), seconds))

    assert state.state == cell.state, f"{state}\n{job.output()}"
    if cell.exit_code is not None:
        assert state.exit_code == cell.exit_code, f"{state}\n{job.output()}"
    assert cell.said in job.output()
    assert len(first) == len(second) == 4, f"{shown}\n{job.output()}"
    assert set(first.values()) <= {"ok", "recovered"}, f"{shown}\n{job.output()}"
    for capture in second:
        assert capture.state in cell.second, f"{shown}\n{job.output()}"
        assert re.search(cell.reason, capture.reason), f"{shown}\n{job.output()}"


def bring_to_its_end(slurm: Sandbox, cell: Cell) -> tuple[Job, JobState, float]:
    """Run the cell's job; once more, twice at most, when nsys did not even start its worker."""
    for attempt in range(3):
        slurm.heal()
        job = submit(slurm, slurm.shared / f"{cell.name.replace(' ', '_').replace(chr(39), '')}-{attempt}", cell.fault, cell.args)
        try:
            if not cell.fault:
                job.wait_step()
        except AgentLost:
            continue
        injected = time.time()
        cell.inject(job)
        state = slurm.wait(job.id, timeout=400)
        if not job.agent_lost():
            return job, state, time.time() - injected
    raise AssertionError("nsys lost its agent three times in a row")


def clean(slurm: Sandbox, cell: Cell, timeout_s: float = 20) -> None:
    """Nothing of the job is left on the nodes that live, some seconds after its end."""
    until = time.monotonic() + timeout_s
    while left := {node: found for node, found in left_behind(slurm).items() if node not in cell.gone}:
        assert time.monotonic() < until, left
        time.sleep(0.2)


@pytest.mark.timeout(1500)
@pytest.mark.skipif(not ALL, reason="part of make test-faults")
def test_a_requeued_job_gets_a_folder_of_its_own(slurm):
    job = submit(slurm, slurm.shared / "requeue", args=("--requeue",))
    job.wait_step()
    slurm.run(["scontrol", "requeue", str(job.id)])
    until = time.monotonic() + 120
    while slurm.job(job.id).restarts < 1:
        assert time.monotonic() < until
        time.sleep(0.2)
    until = time.monotonic() + 240
    while not (job.base / f"{job.id}.r1-logs/run.json").exists():  # the first attempt drains until the second begins
        assert time.monotonic() < until
        slurm.run(["scontrol", "update", f"jobid={job.id}", "starttime=now"], check=False)  # a requeued job waits two minutes by default
        time.sleep(0.5)
    first = files(job)
    job.progress.unlink()
    second = Job(slurm, job.id, job.base, time.time())
    second.wait_step()
    finish(second)
    assert slurm.wait(job.id, timeout=200).state == "COMPLETED"
    assert files(job) == first
    assert (job.base / f"{job.id}.r1-logs/manifest.json").exists()
    states = {(capture.start, capture.state) for capture in job.harvest().captures}
    assert states <= {(2, "ok"), (2, "recovered"), (9, "truncated"), (9, "missing")}


def files(job: Job) -> dict[str, int]:
    return {str(path): path.stat().st_mtime_ns for path in (job.folder / "profiles").rglob("*") if path.is_file()}


def words(states: list[str]) -> str:
    return ", ".join(f"{states.count(state)} {state}" for state in dict.fromkeys(states))


def table(rows: list[Row]) -> str:
    lines = [
        "# What is left when a job ends", "",
        "Made by `make test-faults` from a run on the sandbox: real Slurm, Ray, nsys and torch.profiler on two nodes, two workers, each",
        "profiled by nsight and torch at once. The first window (steps 2 to 3) has ended when the fault comes, the second (steps 9 to 10)",
        "is open. Seconds are from the fault to the end of the job, harvest included.", "",
        "| how the job ends | Slurm says | windows that had ended | the open window | its reason | s |",
        "|---|---|---|---|---|---|",
    ]
    for row in rows:
        reason = row.reason.replace("|", "\\|").replace("\n", " ")
        lines.append(f"| {row.cell.name}: {row.cell.what} | {row.state} | {row.first} | {row.second} | {reason} | {row.seconds:.0f} |")
    return "\n".join(lines) + "\n"
