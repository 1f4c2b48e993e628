"""SIGKILL for our helpers at random moments of a job, and what of it was lost."""

from __future__ import annotations

import contextlib
import os
import random
import re
import signal
import time
from collections import Counter
from dataclasses import dataclass

from rlprof_ops.collect.harvest.manifest import Manifest
from rlprof_ops.collect.harvest.run_state import observe
from rlprof_ops.host.contained_dir import ContainedDir
from tests.faults.job import AgentLost, Job, submit
from tests.sandbox import JobState, Sandbox
from tests.sandbox.box import Process
from tests.supervisors import KEEPER

STEPS = 45
WINDOWS = "2:4, 9:11, 16:18, 23:25, 30:32, 37:39"
STARTS = (2, 9, 16, 23, 30, 37)
TRAINER = ("--steps", str(STEPS), "--seconds", "0.4")
# Kind of helper -> pattern of its command line. Not the batch script, Ray, the trainer, or the keeper of a
# supervisor, whose ends are the job's.
KINDS = {
    "supervisor": r"-m rlprof_ops\.supervisor( |$)",
    "resource probe": r"rlprof_ops\.supervisor\.node\.resource_probe",
    "recorder": r"rlprof_ops\.recorder",
    "sync": r"rlprof_ops\.collect\.sync",
    "nsys start": r"nsys start",
    "nsys stop": r"nsys stop",
    "nsys sessions list": r"nsys sessions",
    "nsys agent": r"start-agent",
    "importer": r"QdstrmImporter",
    "harvest": r"rlprof_ops harvest",
    "report": r"rlprof_ops report",
}
_SUPERVISORS = 2  # in one job
_LIVES_LONG = ("supervisor", "resource probe", "recorder", "sync", "nsys agent")
RUNS = ("PENDING", "CONFIGURING", "RUNNING", "COMPLETING")


@dataclass
class Killed:
    """The job, what was killed when (kind, step), and what the job left."""

    job: Job
    state: JobState
    kills: list[tuple[str, int]]
    manifest: Manifest


def kind_of(process: Process) -> str | None:
    if process.name == KEEPER:
        return None
    return next((kind for kind, words in KINDS.items() if re.search(words, process.cmdline)), None)


def kill_helpers(
    slurm: Sandbox, name: str = "kills", seed: int = 7, enough: frozenset[str] = frozenset(), most: int = 1
) -> Killed:
    """Run a job and kill its helpers while it lives, but none of a kind that is in `enough`.

    `most`: how many of a kind that lives for a moment only are waited for.
    """
    for attempt in range(3):
        slurm.heal()
        job = submit(slurm, slurm.shared / f"{name}-{attempt}", trainer=TRAINER, steps=WINDOWS)
        job.go()
        kills = _kill_while_it_lives(job, random.Random(seed), enough, most)
        state = slurm.wait(job.id, timeout=400)
        if not job.agent_lost():
            return Killed(job, state, kills, job.harvest())
    raise AgentLost


def _kill_while_it_lives(
    job: Job, rng: random.Random, enough: frozenset[str], most: int
) -> list[tuple[str, int]]:
    """At random moments kill one helper, of a kind that was spared so far where there is one.

    What ends the kinds below it comes after them: no `nsys stop` follows a start that was killed, and agents
    come back for nobody.
    """
    kills: list[tuple[str, int]] = []
    while job.sandbox.job(job.id).state in RUNS:
        step = job.step()
        until = time.monotonic() + rng.uniform(0.02, 0.4)
        while time.monotonic() < until:
            done = Counter(kind for kind, _ in kills)
            met = done.keys() | enough
            # No importer either follows a start that was killed; it lives for a moment, and may never be met.
            after = {"nsys stop", "importer"} if step < STEPS // 2 else {"nsys stop"}
            later = {
                "nsys start": not after <= met,
                # One that dies again and again is waited for ever longer.
                "supervisor": not 1 <= step < STEPS - 4 or done["supervisor"] >= _SUPERVISORS,
                "nsys agent": not after | {"nsys start"} <= met and step < STEPS - 8,
            }
            found = [
                (kind, process)
                for node in ("n1", "n2")
                for process in job.sandbox.processes(node)
                if (kind := kind_of(process)) and kind not in enough and not later.get(kind)
            ]
            spared = [each for each in found if done[each[0]] < (1 if each[0] in _LIVES_LONG else most)]
            if spared:
                break  # the kinds that live for a moment only would never be met otherwise
        if found and (spared or step >= 1):
            chosen = rng.choice(sorted({kind for kind, _ in spared or found}))
            kind, process = rng.choice([each for each in found if each[0] == chosen])
            with contextlib.suppress(ProcessLookupError):
                os.kill(process.host_pid, signal.SIGKILL)
                kills.append((kind, step))
    return kills


def lost(found: Killed, over: int) -> list[str]:
    """The windows that had ended and are not home, each with its state and reason.

    A window of torch had ended when the trainer was past it, at step `over`; one of nsight when its process
    has written so, since a killed `nsys stop` leaves none.
    """
    with ContainedDir(found.job.folder) as run:
        ended = {
            (event.backend, log.rank, event.start)
            for log in observe(run).logs
            for event in log.windows
            if event.event == "closed" and not event.partial
        }
    spares_nsys = not any(kind.startswith(("nsys", "importer")) for kind, _ in found.kills)
    for backend in ("torch", "nsight") if spares_nsys else ("torch",):
        ended |= {(backend, rank, start) for rank in (0, 1) for start in STARTS if start + 2 <= over}
    states = {(each.backend, each.rank, each.start): each for each in found.manifest.captures}
    return [
        f"{key}: {states[key].state} {states[key].reason}"
        for key in sorted(ended)
        if states[key].state not in ("ok", "recovered")
    ]
