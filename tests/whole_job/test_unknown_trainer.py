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
    pytest.mark.timeout(500),
    pytest.mark.timed,
]
STEPS, STEP_S = 6, 3.0
TRAINER = f"""
import sys, time
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
for step in steps:
    begin = time.time()
    ray.get([worker.generate.remote() for worker in workers])
    if "bar" not in sys.argv:
        print("step", step, "loss", round(1 / step, 2), "took", begin, time.time())
"""


def submit(slurm: Sandbox, request: dict[str, Any], *words: str) -> Job:
    script, asked = slurm.shared / "unknown trainer.py", slurm.shared / "unknown request.yaml"
    script.write_text(TRAINER)
    asked.write_text(json.dumps(request))
    command = f"python -u '{script}' {' '.join(words)}"
    job = Job.submit(slurm, nodes=2, COMMAND=command, RLPROF_REQUEST=str(asked), RAY_LOG_SYNC_FREQUENCY="2")
    state = job.wait(300)
    assert (state.state, state.exit_code) == ("COMPLETED", 0), job.say()
    return job


def recorded(job: Job) -> dict[int, float]:
    summary = json.loads((job.run / "recorder" / "summary.json").read_text())
    return {row[0]: row[2] for row in summary["history"]["steps"]}


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
    own = {}
    for line in (job.run / "logs" / "driver.log").read_text().splitlines():
        if found := re.search(r"step (\d+) .* took ([0-9.]+) ([0-9.]+)", line):
            own[int(found[1])] = float(found[2]), float(found[3])
    for report in job.manifest.reports:
        assert report.opened_ns and own[3][0] < report.opened_ns / 1e9 < own[3][1], report
    steps = recorded(job)
    assert sorted(steps) == list(range(2, STEPS + 1)), steps
    assert all(abs(seconds - (own[step][1] - own[step][0])) < 0.3 for step, seconds in steps.items()), steps
    said = rf"with 'step (\d+)', which ends its step: steps 2 to {STEPS}; roles driver, rollout (2);"
    assert said in job.manifest.heard and "windows were open at most" in job.manifest.heard
    # The recorder knows those who tell their steps, which the actors of an unknown trainer do not.
    assert said.partition(", rollout")[0] + "; not heard: phases" in top(job), top(job)


def test_steps_of_a_progress_bar_where_no_window_is_asked_for(slurm: Sandbox) -> None:
    job = submit(slurm, {"steps_from": {"log": r"train:.*?(\d+)/\d+ \["}}, "bar")
    steps = recorded(job)
    assert sorted(steps) == list(range(1, STEPS + 1)), steps
    assert all(STEP_S - 0.2 < seconds < STEP_S + 1 for seconds in steps.values()), steps
    assert f": steps 1 to {STEPS}; roles driver; not heard: phases" in job.manifest.heard
