"""The fault matrix on the sandbox: path by path, with both backends in every job.

CI runs the short part; `make test-faults` and `make test-all` (RLPROF_TESTS=long) all of it.
"""

from __future__ import annotations

import functools
import re
from pathlib import Path

import pytest

from rlprof_ops.collect.harvest.manifest import WHOLE, Manifest
from tests.faults.cells import CELLS, Cell, finish
from tests.faults.job import Job, submit
from tests.faults.lanes import Work
from tests.faults.outcome import Outcome, outcome
from tests.faults.table import TABLE, Row
from tests.sandbox import JobState, Sandbox
from tests.waits import wait_until

pytestmark = [pytest.mark.slurm, pytest.mark.nsys, pytest.mark.ray, pytest.mark.torch]


def work_of(cell: Cell) -> Work:
    return Work(cell.name, functools.partial(outcome, cell=cell), cell.seconds)


@pytest.mark.timeout(2700)
@pytest.mark.parametrize(
    "cell",
    [
        pytest.param(
            cell,
            id=cell.name.replace(" ", "-"),
            marks=[pytest.mark.lane(work_of(cell)), *([] if cell.short else [pytest.mark.long])],
        )
        for cell in CELLS
    ],
)
def test_what_had_ended_is_home_and_the_rest_is_explained(lanes, cell):
    found: Outcome = lanes.result(cell.name)

    captures = {
        (capture.backend, capture.rank, capture.start): capture for capture in found.manifest.captures
    }
    first = {key: capture.state for key, capture in captures.items() if key[2] == 2}
    second = [capture for key, capture in captures.items() if key[2] == 9]
    shown = "\n".join(f"{capture.id} {capture.state} {capture.reason}" for capture in found.manifest.captures)
    state, output = found.state, found.job.output()
    TABLE.rows.append(
        Row(
            cell.name,
            cell.what,
            f"{state.state} {state.exit_code}:{state.signal}",
            words(list(first.values())),
            words([each.state for each in second]),
            "; ".join(sorted({each.reason for each in second if each.reason})),
            found.seconds,
        )
    )

    assert not found.left, output
    assert state.state == cell.state, f"{state}\n{output}"
    if cell.exit_code is not None:
        assert state.exit_code == cell.exit_code, f"{state}\n{output}"
    assert cell.said in output
    if cell.umask == "0077" and state.state == "COMPLETED":
        assert f"umasks {[0o077] * 2}" in output  # of workers under nsys, which would make it 0
        assert found.open_to_others == []
    assert len(first) == len(second) == 4, f"{shown}\n{output}"
    assert set(first.values()) <= {"ok", "recovered"}, f"{shown}\n{output}"
    for capture in second:
        assert capture.state in cell.second, f"{shown}\n{output}"
        assert re.search(cell.reason, capture.reason), f"{shown}\n{output}"


def requeued(slurm: Sandbox, harvest_job: str) -> tuple[Job, JobState, bool]:
    """A job that is requeued in its second window and then runs through; whether the second attempt left
    the first one's files alone.
    """
    folder = slurm.shared / f"requeue {harvest_job}"
    job = submit(slurm, folder, args=("--requeue",), RLPROF_HARVEST_JOB=harvest_job)
    job.wait_step()
    slurm.run(["scontrol", "requeue", str(job.id)])
    wait_until(lambda: slurm.job(job.id).restarts >= 1, 120, pause_s=0.2)
    second = job.base / f"{job.id}.r1-logs/run.json"  # the first attempt drains until the second begins

    def begun() -> bool:
        """A requeued job waits two minutes by default."""
        slurm.run(["scontrol", "update", f"jobid={job.id}", "starttime=now"], check=False)
        return second.exists()

    wait_until(begun, 240, job.output, pause_s=0.5)
    first = files(job)
    job.progress.unlink()
    job.wait_step()
    finish(job)
    state = slurm.wait(job.id, timeout=200)
    # By a job of its own, which the next fault on this sandbox would end.
    wait_until(functools.partial(manifest_of, job.base / f"{job.id}.r1-logs"), 90)
    return job, state, files(job) == first


def requeue_work(harvest_job: str) -> Work:
    return Work(f"requeue {harvest_job}", functools.partial(requeued, harvest_job=harvest_job), 80)


@pytest.mark.timeout(2700)
@pytest.mark.long
@pytest.mark.parametrize(
    "harvest_job",
    [pytest.param(job, marks=pytest.mark.lane(requeue_work(job))) for job in ("0", "1")],
)
def test_a_requeued_job_takes_in_a_folder_of_its_own_what_is_missing(harvest_job, lanes):
    """With a job that harvests, the manifest of the first attempt is still to come when the second begins."""
    job, state, untouched = lanes.result(f"requeue {harvest_job}")
    assert state.state == "COMPLETED"
    assert untouched
    captures = job.harvest().captures
    states = {(capture.start, capture.state) for capture in captures}
    assert states <= {(2, "ok"), (2, "recovered"), (9, "truncated"), (9, "missing")}
    again = Manifest.load(job.base / f"{job.id}.r1-logs").captures
    missing = {capture.id for capture in captures if capture.state not in WHOLE}
    assert {capture.id: capture.state for capture in again} == dict.fromkeys(missing, "ok")


def manifest_of(folder: Path) -> Manifest | None:
    return Manifest.load(folder) if (folder / "manifest.json").exists() else None


def files(job: Job) -> dict[str, int]:
    return {
        str(path): path.stat().st_mtime_ns for path in (job.folder / "profiles").rglob("*") if path.is_file()
    }


def words(states: list[str]) -> str:
    return ", ".join(f"{states.count(state)} {state}" for state in dict.fromkeys(states))
