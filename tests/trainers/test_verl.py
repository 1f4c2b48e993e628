"""verl's main_ppo, unchanged, with a real vLLM server: RLPROF_STEPS and RLPROF_WORKERS are all that is added.

One run, and everything that is claimed of it. The oracle of times is verl's own `timing_s/*` on its console.
"""

from __future__ import annotations

import itertools
import json
import re
from pathlib import Path
from typing import Any

import pytest

from rlprof_ops.analyze.metrics.phases import canonical
from rlprof_ops.recorder.record_file import read_folder
from rlprof_ops.recorder.rows import ENGINE, LAYOUT
from tests.analyze.as_data import answer_of
from tests.real_nsys import nvtx_ranges
from tests.trainers import verl_job
from tests.whole_job.jobs import Job

pytestmark = [
    pytest.mark.trainers,
    pytest.mark.slurm,
    pytest.mark.nsys,
    pytest.mark.timeout(1500),
]
Events = dict[str, list[dict[str, Any]]]
ROLES = ("controller", "actor", "rollout", "agent_loop")
TIMED = ("gen", "old_log_prob", "adv", "update_actor", "update_weights")


@pytest.fixture(scope="module")
def job(slurm_sandbox: Any) -> Job:
    made = verl_job.submit(slurm_sandbox, steps=4)
    assert made.wait(1300).exit_code == 0, made.output
    return made


@pytest.fixture(scope="module")
def events(job: Job) -> Events:
    """Every event by the process that it is of."""
    return {
        path.name: [json.loads(line) for line in path.read_text().splitlines()]
        for path in job.run.glob("nodes/*/events/*.jsonl")
    }


@pytest.fixture(scope="module")
def own_times(job: Job) -> dict[tuple[int, str], float]:
    """`timing_s/<name>` of each step, as verl prints it."""
    found = {}
    for line in (job.run / "logs" / "driver.log").read_text(errors="replace").splitlines():
        step = re.search(r"step:(\d+) - .*timing_s/step:", line)
        for name, seconds in re.findall(r"timing_s/(\w+):([\d.e-]+)", line) if step else ():
            found[int(step[1]), name] = float(seconds)  # type: ignore[index]
    return found


def test_each_role_has_its_capture_under_its_name_and_rank(job: Job):
    states = job.states()
    assert {role: states.get(f"nsight/{role}/rank0/step2-2") for role in ROLES} == dict.fromkeys(
        ROLES, "ok"
    ), job.output
    assert not [capture for capture, state in states.items() if state == "missing"], states


def test_windows_are_final_while_training_goes_on(events: Events):
    steps = {e["step"]: e for rows in events.values() for e in rows if e["event"] == "step"}
    assert sorted(steps) == [1, 2, 3, 4]
    closed = [e for rows in events.values() for e in rows if e["event"] == "closed"]
    assert len(closed) >= len(ROLES)
    late = {e["report"]: (e["t_ns"] - steps[3]["end_ns"]) / 1e9 for e in closed}
    ends = [max(e["t_ns"] for e in closed), steps[3]["end_ns"]]
    after = [(end - steps[2]["end_ns"]) / 1e9 for end in ends]
    print(f"after step 2: the last report after {after[0]:.1f} s, step 3 ends after {after[1]:.1f} s")
    assert not {report: s for report, s in late.items() if s > 0}
    assert all(not e["partial"] and e["seen"] == [2] for e in closed)


def test_the_rollout_servers_report_holds_its_engine(job: Job, tmp_path: Path):
    [report] = (job.run / "profiles" / "nsight" / "rollout" / "rank0").glob("*.nsys-rep")
    assert "generation" in nvtx_ranges(report, tmp_path)
    [report] = (job.run / "profiles" / "nsight" / "actor" / "rank0").glob("*.nsys-rep")
    assert {"actor_compute_log_prob", "actor_update", "update_weights"} <= set(nvtx_ranges(report, tmp_path))


def test_phases_of_the_driver_are_verls_own_timers(job: Job, own_times: dict[tuple[int, str], float]):
    answer = answer_of(job.run, quiet=True)
    names = answer["phase_names"]
    [controller] = [i for i, rank in enumerate(answer["ranks"]) if rank["worker"] == "controller"]
    mine = {
        names[phase["phase"]]: phase["duration_ns"] / 1e9
        for row in answer["anatomy"]
        if row["rank"] == controller and row["step"] == 2
        for phase in row["phases"]
    }
    compared = {name: (mine.get(canonical(name)), own_times[2, name]) for name in TIMED}
    wrong = {
        name: pair
        for name, pair in compared.items()
        if pair[0] is None or abs(pair[0] - pair[1]) > max(0.02 * pair[1], 0.02)
    }
    assert not wrong, compared
    seen = {rank["worker"] for rank in answer["ranks"]}
    assert {"controller", "actor", "rollout"} <= seen


def test_every_steps_time_is_told(events: Events, own_times: dict[tuple[int, str], float]):
    for row in (e for rows in events.values() for e in rows if e["event"] == "step"):
        told = (row["end_ns"] - row["begin_ns"]) / 1e9
        assert abs(told - own_times[row["step"], "step"]) <= max(0.02 * told, 0.02)


def test_the_recorder_reads_the_servers_own_endpoint(job: Job):
    """Found by itself: the server's port is free by chance. verl's own count of tokens is the oracle."""
    log = (job.run / "logs" / "driver.log").read_text(errors="replace")
    made = 16 * sum(float(mean) for mean in re.findall(r"response_length/mean:([\d.]+)", log))
    [folder] = job.run.glob("nodes/*/record")
    looks = []
    for block in read_folder(folder):
        names = block.names()
        for row in LAYOUT[ENGINE][0].iter_unpack(block.sections.get(ENGINE, b"")):
            looks.append((block.base_ns / 1e9 + row[0] / 10, names[row[1]], *row[2:]))
    assert len({url for _, url, *_ in looks}) == 1 and re.search(r":\d+/metrics$", looks[0][1]), looks[:3]
    assert max(running for _, _, running, *_ in looks) <= 16
    told = sum(look[-2] * (look[0] - before[0]) for before, look in itertools.pairwise(looks))
    print(f"{len(looks)} looks: {told:.0f} tokens of {made:.0f}")
    assert made > 0 and abs(told - made) <= 0.1 * made, looks
