"""SIGKILL for our helpers at random moments of one job: training does not notice, nothing that had ended
is lost.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import time
from collections import Counter
from dataclasses import dataclass

import pytest

from rlprof_ops.collect.harvest.manifest import Manifest
from rlprof_ops.collect.harvest.run_state import observe
from rlprof_ops.host.contained_dir import ContainedDir
from tests.faults.job import AgentLost, Job, submit
from tests.faults.lanes import Work
from tests.faults.table import TABLE
from tests.sandbox import JobState, Sandbox
from tests.sandbox.box import Process

pytestmark = [pytest.mark.slurm, pytest.mark.nsys, pytest.mark.ray, pytest.mark.torch, pytest.mark.long]
KILLS = 20
STEPS = 45
WINDOWS = "2:4, 9:11, 16:18, 23:25, 30:32, 37:39"
# Kind of helper -> words of its command line. Not the batch script, Ray, the trainer, or the supervisor that
# srun watches; the supervisor's own end is a row of the fault matrix.
KINDS = {
    "readiness probe": "rlprof_ops.supervisor.gcs.gcs_probe",
    "sync": "rlprof_ops.collect.sync",
    "nsys start": "nsys start",
    "nsys stop": "nsys stop",
    "nsys sessions list of the drain": "nsys sessions",
    "nsys agent": "start-agent",
    "harvest": "rlprof_ops harvest",
    "report": "rlprof_ops report",
}


@dataclass
class Killed:
    """The job, what was killed when (kind, step), and what the job left."""

    job: Job
    state: JobState
    kills: list[tuple[str, int]]
    manifest: Manifest


def kind_of(process: Process) -> str | None:
    return next((kind for kind, words in KINDS.items() if words in process.cmdline), None)


def kill_helpers(slurm: Sandbox) -> Killed:
    for attempt in range(3):
        slurm.heal()
        job = submit(
            slurm,
            slurm.shared / f"kills-{attempt}",
            trainer=("--steps", str(STEPS), "--seconds", "0.4"),
            steps=WINDOWS,
        )
        job.go()
        kills = kill_while_it_lives(job, random.Random(7))
        state = slurm.wait(job.id, timeout=400)
        if not job.agent_lost():
            return Killed(job, state, kills, job.harvest())
    raise AgentLost


def kill_while_it_lives(job: Job, rng: random.Random) -> list[tuple[str, int]]:
    """At random moments kill one helper, of a kind that was spared so far where there is one.

    What ends the kinds below it comes after them: no `nsys stop` follows a start that was killed, and agents
    come back for nobody.
    """
    kills: list[tuple[str, int]] = []
    while job.sandbox.job(job.id).state in ("PENDING", "CONFIGURING", "RUNNING", "COMPLETING"):
        step = job.step()
        until = time.monotonic() + rng.uniform(0.02, 0.4)
        while time.monotonic() < until:
            found = [
                (kind, process)
                for node in ("n1", "n2")
                for process in job.sandbox.processes(node)
                if (kind := kind_of(process))
            ]
            done = dict(kills)
            later = {
                "nsys start": "nsys stop" not in done,
                "nsys agent": not {"nsys stop", "nsys start"} <= set(done) and step < STEPS - 8,
            }
            found = [(kind, process) for kind, process in found if not later.get(kind)]
            spared = [(kind, process) for kind, process in found if kind not in done]
            if spared:
                break  # the kinds that live for a moment only would never be met otherwise
        if found and (spared or step >= 1):
            chosen = rng.choice(sorted({kind for kind, _ in spared or found}))
            kind, process = rng.choice([each for each in found if each[0] == chosen])
            with contextlib.suppress(ProcessLookupError):
                os.kill(process.host_pid, signal.SIGKILL)
                kills.append((kind, step))
    return kills


@pytest.mark.timeout(1500)
@pytest.mark.lane(Work("kills", kill_helpers, 90))
def test_killing_helpers_at_random_moments_costs_training_nothing(lanes):
    found: Killed = lanes.result("kills")
    counts = Counter(kind for kind, _ in found.kills)
    TABLE.kills.update(counts)
    print(f"{len(found.kills)} kills: {dict(counts)}; (kind, step): {found.kills}")

    output, captures = found.job.output(), found.manifest.captures
    assert len(found.kills) >= KILLS
    assert set(counts) == set(KINDS), counts
    assert (found.state.state, found.state.exit_code) == ("COMPLETED", 0), output
    assert f"result {sum(range(STEPS + 1))}" in (found.job.folder / "logs/driver.log").read_text()
    shown = "\n".join(
        [
            *map(str, found.kills),
            *(f"{capture.id} {capture.state} {capture.reason}" for capture in captures),
            output,
        ]
    )
    with ContainedDir(found.job.folder) as run:
        ended = {
            (event.backend, log.rank, event.start)
            for log in observe(run).logs
            for event in log.windows
            if event.event == "closed"
        }
    states = {(capture.backend, capture.rank, capture.start): capture.state for capture in captures}
    assert all(states[key] in ("ok", "recovered") for key in ended), shown
    assert all(states["torch", rank, start] == "ok" for rank in (0, 1) for start in (2, 9, 16, 23, 30, 37)), (
        shown
    )
    assert all(capture.reason for capture in captures if capture.state != "ok"), shown
    job_said = (found.job.base / f"slurm-{found.job.id}.out").read_text(
        errors="replace"
    )  # `output` is its end only
    for kind, said in (
        ("sync", "sync ended with -9 while the job runs"),
        ("harvest", "harvest ended with -9"),
        ("readiness probe", "the process that asks"),
    ):
        assert said in job_said, f"{kind}\n{shown}"
