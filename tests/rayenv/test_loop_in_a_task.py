"""The training loop in a Ray task, as SkyRL and many scripts have it, on real Ray and real nsys."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from rlprof_ops.collect.harvest.manifest import Manifest
from rlprof_ops.job.knobs import import_path

pytestmark = [pytest.mark.ray, pytest.mark.nsys, pytest.mark.whole, pytest.mark.timeout(700)]

SCRIPT = """
import os, sys, time
import ray

@ray.remote(num_cpus=0)
class PolicyWorker:
    def train(self):
        time.sleep(0.05)

@ray.remote(num_cpus=0)
class EvalWorker:
    def evaluate(self):
        time.sleep(0.01)

@ray.remote(num_cpus=0)
class ProbeWorker:
    def probe(self):
        time.sleep(0.01)
        return os.getpid()

@ray.remote(num_cpus=1)
def entrypoint(tells):
    from rlprof_ops.runtime import profiler
    prof = profiler.from_env() if tells else None
    workers = [PolicyWorker.remote() for _ in range(2)]
    probe = ProbeWorker.remote()
    *_, pid = ray.get([worker.train.remote() for worker in workers] + [probe.probe.remote()])
    late = None
    for step in range(1, 6):
        if prof:
            prof.start_step(step)
        ray.get([worker.train.remote() for worker in workers])
        if step == 1:
            ray.kill(probe)
            until = time.monotonic() + 60
            while os.path.exists(f"/proc/{pid}") and time.monotonic() < until:
                time.sleep(0.1)
            time.sleep(2)
        if step == 4:
            late = EvalWorker.remote()
            ray.get(late.evaluate.remote())
        if prof:
            prof.stop_step(step)
        print("step", step, flush=True)
    if prof:
        prof.close()

ray.init(logging_level="error")
ray.get(entrypoint.remote(sys.argv[1] == "tells"))
"""
PROGRAM = """
import sys
from pathlib import Path
from rlprof_ops.demo.local_job import run_local
sys.exit(run_local(Path(sys.argv[1]), {}, print).exit_code)
"""


def run(folder: Path, word: str, **knobs: str) -> tuple[Manifest, str]:
    """What a job of the script leaves: its manifest, and what its driver printed."""
    script = folder / "train.py"
    script.write_text(SCRIPT)
    return run_job(folder, shlex.join([sys.executable, str(script), word]), **knobs)


def run_job(folder: Path, command: str, **knobs: str) -> tuple[Manifest, str]:
    """What a local job of one node leaves, which asks for nsight windows of steps 2 and 3."""
    settings = {
        **{name: value for name, value in os.environ.items() if not name.startswith(("RLPROF_", "RAY_"))},
        "PYTHONPATH": import_path(),
        "COMMAND": command,
        "RLPROF_NODE_ROOT": "/tmp",
        "RLPROF_READY_SECONDS": "200",
        "RLPROF_REPORT_SECONDS": "0",
        "RAY_AUTH_MODE": "disabled",
        "CPUS_PER_WORKER": "4",
        "RLPROF_STEPS": "2:4",
        "RLPROF_WORKERS": "*",
        "RLPROF_OPTIONS": '{"t": "nvtx"}',
        **knobs,
    }
    done = subprocess.run(
        [sys.executable, "-P", "-c", PROGRAM, str(folder)],
        env=settings,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-6000:]
    [left] = folder.glob("local-*-logs")
    return Manifest.load(left), done.stdout


def states(manifest: Manifest) -> dict[tuple[str, int | None], tuple[str, str]]:
    return {(each.worker, each.rank): (each.state, each.reason) for each in manifest.captures}


def test_a_task_that_tells_its_steps_leads_the_job(tmp_path: Path):
    manifest, said = run(tmp_path, "tells")

    assert "step 5" in said
    found = states(manifest)
    assert manifest.world == {"controller": 1, "eval_worker": 1, "policy_worker": 2, "probe_worker": 1}
    assert [found["policy_worker", rank][0] for rank in (0, 1)] == ["ok", "ok"], said
    late, short, loop = (found[name, 0] for name in ("eval_worker", "probe_worker", "controller"))
    assert late == ("missing", "the worker began at step 4, after step 2 had begun")
    assert short[0] == "missing" and "the worker ended before step 2 (last step seen: 1)" in short[1]
    assert loop[0] == "missing" and "Ray starts tasks in processes that are there already" in loop[1]


def test_a_task_that_tells_none_is_the_reason_for_each_worker_that_was_there(tmp_path: Path):
    other = {"NRL_NSYS_PROFILE_STEP_RANGE": "7:9", "NRL_NSYS_WORKER_PATTERNS": "*"}

    manifest, said = run(tmp_path, "tells none", RLPROF_WORKERS="*_worker", **other)

    found = states(manifest)
    assert set(found) == {("eval_worker", 0), ("policy_worker", 0), ("policy_worker", 1), ("probe_worker", 0)}
    for state, reason in found.values():
        assert state == "missing" and "no process of the job told its steps" in reason, said
    [note] = [note for note in manifest.notes if "NRL_NSYS_PROFILE_STEP_RANGE=7:9" in note]
    assert "overrule" in note and "dropped" in note
