"""Supervisors that are killed while a job runs whose trainer knows nothing of ours but its steps: training
goes on, windows that were open end as reports, and the job ends with its driver's exit code.
"""

from __future__ import annotations

import json
import os
import shlex
import signal
import time
from pathlib import Path

import pytest
from tests.real_nsys import nvtx_ranges
from tests.sandbox import Sandbox
from tests.supervisors import supervisor_of
from tests.waits import wait_until
from tests.whole_job.jobs import Job

from rlprof_ops.recorder import rows
from rlprof_ops.recorder.record_file import read_folder

pytestmark = [pytest.mark.slurm, pytest.mark.ray, pytest.mark.nsys, pytest.mark.timeout(1500)]

STEPS, CODE = 30, 3
WINDOWS = ((3, 5), (8, 12), (16, 19), (24, 26))
TRAINER = r"""
import os, pathlib, sys, time
import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy as On
from rlprof_ops.runtime import profiler

progress, steps, code = pathlib.Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])

@ray.remote(num_cpus=0)
class Rollout:
    def work(self, step):
        import nvtx
        with nvtx.annotate(f"work in step {step}", domain="trainer"):
            time.sleep(0.5)
        return os.getpid()

ray.init(log_to_driver=False, logging_level="error")
nodes = {node["NodeManagerHostname"]: node["NodeID"] for node in ray.nodes()}
workers = [
    Rollout.options(
        scheduling_strategy=On(node_id=nodes[f"n{rank + 1}"], soft=False),
        runtime_env={"rlprof": {"worker": "rollout", "rank": rank}},
    ).remote()
    for rank in range(2)
]
pids = ray.get([worker.work.remote(0) for worker in workers])
prof = profiler.from_env(worker="controller", rank=0, world_size=1)
lengths = []
for step in range(1, steps + 1):
    began = time.monotonic()
    with prof.step(step):
        assert ray.get([worker.work.remote(step) for worker in workers]) == pids
    lengths.append(time.monotonic() - began)
    progress.write_text(" ".join(map(str, [step, *lengths])))
prof.close()
sys.exit(code)
"""


def test_a_job_whose_supervisors_are_killed_one_after_the_other(slurm: Sandbox, tmp_path: Path) -> None:
    script, progress = slurm.shared / "takeover trainer.py", slurm.shared / "takeover progress"
    script.write_text(TRAINER)
    steps = ", ".join(f"{start}:{stop}" for start, stop in WINDOWS)
    asked = [{"backend": "nsight", "workers": ["rollout"], "steps": steps, "options": {"t": "nvtx"}}]
    request = slurm.shared / "takeover request.yaml"
    request.write_text(json.dumps({"captures": asked}))
    command = shlex.join(["python", "-u", str(script), str(progress), str(STEPS), str(CODE)])
    knobs = {"COMMAND": command, "RLPROF_REQUEST": str(request), "RAY_LOG_SYNC_FREQUENCY": "2"}
    job = Job.submit(slurm, nodes=2, **knobs)
    over = lambda: slurm.job(job.id).state.startswith(("FAIL", "CANC", "COMP"))  # noqa: E731

    def reach(step: int) -> None:
        wait_until(
            lambda: progress.exists() and int((progress.read_text() or "0").split()[0]) >= step,
            500,  # a `ray start` that a busy machine spoils is tried again
            job.say,
            pause_s=0.05,
            unless=over,
        )

    def kill(node: str) -> None:
        before = supervisor_of(slurm, node)
        os.kill(before.host_pid, signal.SIGKILL)
        wait_until(lambda: supervisor_of(slurm, node).pid != before.pid, 60, job.say, unless=over)

    reach(8)
    time.sleep(0.3)
    kill("n1")  # the head's, with the windows of step 8 to 11 open
    reach(17)
    kill("n2")  # the other one's, with those of step 16 to 18
    state = job.wait()

    assert (state.state, state.exit_code) == ("FAILED", CODE), job.say()
    lengths = dict(enumerate(map(float, progress.read_text().split()[1:]), start=1))
    changes = {1, *(step for window in WINDOWS for step in window)}  # which wait for nsys, as they should
    assert all(lengths[step] < 10 for step in lengths if step not in changes), lengths
    told = job.record
    assert told["driver"]["exit_code"] == CODE and told["end"]["cause"] == "driver_exit", told
    assert not told["end"]["lost_nodes"], told
    how = "was killed by signal 9"
    assert [(each["node"], each["how"]) for each in told["takeovers"]] == [("n1", how), ("n2", how)], told

    notes = [note for note in job.manifest.notes if "another one took over" in note]
    assert [note[:8] for note in notes] == ["node n1:", "node n2:"] and how in notes[0], notes
    captures = job.manifest.captures
    states = [(each.worker, each.rank, each.start, each.state, each.reason) for each in captures]
    assert {each.state for each in captures} == {"ok"} and len(captures) == 2 * len(WINDOWS), states
    for capture in captures:
        ranges = nvtx_ranges(job.run / str(capture.report), tmp_path, ended=True)
        expected = {f"work in step {step}" for step in range(capture.start, capture.stop or 0)}
        assert expected <= set(ranges), (capture, ranges)

    steps_told = [
        step
        for block in read_folder(job.run / "nodes" / "n1" / "record")
        for _, step, _, _ in rows.LAYOUT[rows.STEP][0].iter_unpack(block.sections.get(rows.STEP, b""))
    ]
    assert steps_told == list(range(1, STEPS + 1)), "each step once, of the driver, through two recorders"
    assert not job.leftovers()
