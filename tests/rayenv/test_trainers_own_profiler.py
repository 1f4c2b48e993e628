"""A trainer that profiles by itself: the `nsight` key with a capture range, torch.cuda.profiler in a worker.

Its windows are windows of a session: each is final before the worker ends, and named by class and rank.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from tests.needs import need

from rlprof_ops.backends.nsight import nsys_cli
from rlprof_ops.collect.event_logs import read_node
from rlprof_ops.demo.local_job import run_local

pytestmark = [pytest.mark.ray, pytest.mark.nsys, pytest.mark.torch, pytest.mark.timeout(600)]

TRAINER = """
import glob, os, time
import ray

NSIGHT = {
    "t": "nvtx",
    "o": "'mine_%p'",
    "capture-range": "cudaProfilerApi",
    "capture-range-end": "repeat-shutdown:9",
}

@ray.remote(num_cpus=0)
class PolicyWorker:
    def train(self, step):
        import nvtx, torch
        if step in (2, 4):
            torch.cuda.profiler.start()
        with nvtx.annotate("train"):
            time.sleep(0.2)
        if step in (2, 4):
            torch.cuda.profiler.stop()

    def reports(self):
        deadline = time.monotonic() + 200
        found = []
        while len(found) < 2 and time.monotonic() < deadline:
            time.sleep(0.2)
            folder = os.environ["RLPROF_NODE_DIR"] + "/profiles/nsight/policy_worker/rank1"
            found = glob.glob(folder + "/*.nsys-rep")
        return len(found), os.environ.get("RLPROF_NSYS_SESSION")

ray.init(address="auto")
workers = [PolicyWorker.options(runtime_env={"nsight": NSIGHT}).remote() for _ in range(2)]
for step in range(1, 6):
    ray.get([worker.train.remote(step) for worker in workers])
print("while it lives", ray.get(workers[1].reports.remote()))
"""


def test_its_windows_are_final_while_it_trains(tmp_path: Path):
    need("nsys", "ray", "torch")
    script = tmp_path / "train.py"
    script.write_text(TRAINER)
    said: list[str] = []
    knobs = {"RLPROF_DASHBOARD": "0", "RLPROF_REPORT_SECONDS": "0"}
    done = run_local(tmp_path, {**knobs, "COMMAND": f"{sys.executable} {script}"}, said.append)
    assert done.exit_code == 0, "\n".join(said)
    assert any("while it lives (2, 'rlprof-" in line for line in said), said
    logs = [log for log in read_node(next((done.run.path / "nodes").glob("*/events"))) if log.windows]
    assert sorted((log.worker, log.rank) for log in logs) == [("policy_worker", 0), ("policy_worker", 1)]
    for log in logs:
        assert [(event.event, event.start) for event in log.windows] == [
            ("opened", 1),
            ("closed", 1),
            ("opened", 2),
            ("closed", 2),
        ]
        for event in log.windows[1::2]:
            assert nsys_cli.check(done.run.path / event.path).state == "ok"
