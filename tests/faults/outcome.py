"""Brings one job of the matrix to its end and says what became of it."""

from __future__ import annotations

import re
import time
from dataclasses import dataclass
from pathlib import Path

from rlprof_ops.collect.harvest.manifest import Manifest
from tests.faults.cells import Cell
from tests.faults.job import AgentLost, Job, left_behind, submit
from tests.sandbox import JobState, Sandbox
from tests.waits import poll


@dataclass
class Outcome:
    """What became of one cell's job: as Slurm says, seconds from the fault to its end, what its nodes
    still hold, and files of the run folder that others than its user may touch.
    """

    job: Job
    state: JobState
    seconds: float
    left: dict[str, list[str]]
    open_to_others: list[Path]
    manifest: Manifest


def outcome(slurm: Sandbox, cell: Cell) -> Outcome:
    """Bring the cell's job to its end; once more, twice at most, when nsys did not even start its worker."""
    for attempt in range(3):
        slurm.heal()
        base = slurm.shared / f"{cell.name.replace(' ', '_').replace(chr(39), '')}-{attempt}"
        job = start(slurm, cell, base)
        try:
            job.wait_step()
        except AgentLost:
            continue
        injected = time.time()
        cell.inject(job)
        state = slurm.wait(job.id, timeout=400)
        if not job.agent_lost():
            seconds = time.time() - injected
            if cell.stays:
                bring_home(job)
            left = still_there(slurm, cell)
            return Outcome(job, state, seconds, left, open_to_others(job.folder), job.harvest())
    raise AssertionError("nsys lost its agent three times in a row")


def open_to_others(folder: Path) -> list[Path]:
    """Before a harvest of the test's own, which writes with its own umask."""
    return [path for path in folder.rglob("*") if not path.is_symlink() and path.lstat().st_mode & 0o077]


def start(slurm: Sandbox, cell: Cell, base: Path) -> Job:
    """Submit the cell's job."""
    knobs = dict(cell.knobs) | cell.prepare(base)
    return submit(
        slurm, base, cell.fault, cell.args, cell.trainer, local=cell.local, umask=cell.umask, **knobs
    )


def bring_home(job: Job) -> None:
    """What had not come over when the storage failed is on its nodes, the manifest says so, and the command
    that the job names brings it home.

    A first window that ended just before may be among it: the next pass would have taken it.
    """
    captures = job.harvest().captures
    missing = [capture for capture in captures if capture.state != "ok"]
    assert {capture.state for capture in missing} == {"missing"} and {
        capture.start for capture in missing
    } >= {9}, captures
    assert all(capture in missing for capture in captures if capture.start == 9), captures
    assert all("n1" in capture.reason or "n2" in capture.reason for capture in missing), captures
    said = (job.base / f"slurm-{job.id}.out").read_text()
    for node in ("n1", "n2"):
        commands = re.findall(rf"on node {node}: (env .*supervisor.salvage)", said)
        assert len(commands) == 1, said
        job.sandbox.exec(node, ["sh", "-c", commands[0]], timeout=120)


def still_there(slurm: Sandbox, cell: Cell, timeout_s: float = 60) -> dict[str, list[str]]:
    """What is left of the job on the nodes that live, some seconds after its end."""

    def left() -> dict[str, list[str]]:
        return {node: found for node, found in left_behind(slurm).items() if node not in cell.gone}

    return poll(left, timeout_s, pause_s=0.2, enough=lambda found: not found)
