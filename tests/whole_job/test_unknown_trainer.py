"""A trainer that no adapter knows, in a real job of two nodes: its driver prints its steps, and a rule of the
request is all that there is.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from typing import Any

import pytest
from tests.sandbox import Sandbox
from tests.whole_job.jobs import Job

pytestmark = [
    pytest.mark.slurm,
    pytest.mark.nsys,
    pytest.mark.ray,
    pytest.mark.timeout(1000),
    pytest.mark.timed,
]
STEPS, STEP_S = 6, 3.0
TRAINER = f"""
import pathlib, sys, time
import ray

@ray.remote(num_cpus=1, scheduling_strategy="SPREAD")
class Rollout:
    def generate(self):
        time.sleep({STEP_S})

ray.init(log_to_driver=False)
workers = [Rollout.remote() for _ in range(2)]
ray.get([worker.generate.remote() for worker in workers])
steps = range(1, {STEPS + 1})
if "bar" in sys.argv:
    from tqdm import tqdm
    steps = tqdm(steps, desc="train")
own = open(pathlib.Path(sys.argv[0]).with_suffix(".own"), "w")
for step in steps:
    begin = time.time()
    ray.get([worker.generate.remote() for worker in workers])
    print(step, begin, time.time(), file=own, flush=True)
    if "bar" not in sys.argv:
        print("step", step, "loss", round(1 / step, 2))
"""


def submit(slurm: Sandbox, request: dict[str, Any], *words: str) -> Job:
    script, asked = slurm.shared / "unknown trainer.py", slurm.shared / "unknown request.yaml"
    script.write_text(TRAINER)
    asked.write_text(json.dumps(request))
    command = f"python -u '{script}' {' '.join(words)}"
    job = Job.submit(slurm, nodes=2, COMMAND=command, RLPROF_REQUEST=str(asked), RAY_LOG_SYNC_FREQUENCY="2")
    state = job.wait()
    assert (state.state, state.exit_code) == ("COMPLETED", 0), job.say()
    return job


def own_times(slurm: Sandbox) -> dict[int, tuple[float, float]]:
    """Begin and end of each step, by the driver's own clock."""
    rows = [line.split() for line in (slurm.shared / "unknown trainer.own").read_text().splitlines()]
    return {int(step): (float(begin), float(end)) for step, begin, end in rows}


def recorded(job: Job) -> dict[int, float]:
    """The length of each step, which is from a line to the next; but for how late a line was seen, as the
    manifest says, it is what the driver's own clock says around it. Of the first line it does not say that.
    """
    summary = json.loads((job.run / "recorder" / "summary.json").read_text())
    steps = {row[0]: row[2] for row in summary["history"]["steps"]}
    own = own_times(job.sandbox)
    said = re.search(r"a step was known at most (\S+) (s|ms|µs) after its line", job.manifest.heard)
    assert said, job.manifest.heard
    late_s = float(said[1]) * {"s": 1, "ms": 1e-3, "µs": 1e-6}[said[2]]
    assert late_s < 5, said
    for step, seconds in steps.items():
        line = own[step - 1][1] if step > 1 else own[1][0] - 1
        after = own[step + 1][0] if step < STEPS else own[step][1] + 1
        least_s = own[step][1] - own[step][0] - (1.5 if step == min(steps) else 0)
        assert least_s - late_s - 0.2 < seconds < after - line + late_s + 0.2, (step, steps, own, said)
    return steps


def top(job: Job) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "rlprof_ops", "top", str(job.run), "--once"],
        env={"PATH": "/usr/bin:/bin", "PYTHONPATH": ":".join(sys.path), "COLUMNS": "400"},
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    return done.stdout


def test_windows_of_workers_by_the_steps_that_the_driver_prints(slurm: Sandbox) -> None:
    capture = {"workers": ["rollout", "driver"], "steps": "3:5", "options": {"t": "osrt"}}
    job = submit(slurm, {"captures": [capture], "steps_from": {"log": r"step (\d+)"}})
    assert job.states() == dict.fromkeys(
        ("nsight/driver/rank0/step3-4", "nsight/rollout/rank0/step3-4", "nsight/rollout/rank1/step3-4"), "ok"
    ), job.say()
    own = own_times(slurm)
    for report in job.manifest.reports:
        assert report.opened_ns and own[3][0] < report.opened_ns / 1e9 < own[3][1], report
    steps = recorded(job)
    assert sorted(steps) == list(range(2, STEPS + 1)), steps
    said = rf"with 'step (\d+)', which ends its step: steps 2 to {STEPS}; roles driver, rollout (2);"
    assert said in job.manifest.heard and "windows were open at most" in job.manifest.heard
    # The recorder knows those who tell their steps, which the actors of an unknown trainer do not.
    assert said.partition(", rollout")[0] + "; not heard: phases" in top(job), top(job)


def test_steps_of_a_progress_bar_where_no_window_is_asked_for(slurm: Sandbox) -> None:
    job = submit(slurm, {"steps_from": {"log": r"train:.*?(\d+)/\d+ \["}}, "bar")
    steps = recorded(job)
    assert sorted(steps) == list(range(1, STEPS + 1)), steps
    assert f": steps 1 to {STEPS}; roles driver; not heard: phases" in job.manifest.heard
