"""Every way a Ray worker can end, by `ray.sub` on real nodes: windows that had ended are home, in both
ways to take them.
"""

from __future__ import annotations

import json
import shlex

import pytest
from tests.whole_job.jobs import Job

pytestmark = [pytest.mark.slurm, pytest.mark.ray, pytest.mark.nsys, pytest.mark.timeout(900)]

# In the second window, which is open, each worker ends in the way of its rank; the driver or Ray itself ends
# with those left.
WAYS = {0: "ray.kill", 1: "__ray_terminate__", 2: "out of scope", 3: "the end of the job"}
TRAINER = r"""
import glob, os, signal, subprocess, sys, time
import ray
from rlprof_ops.runtime import profiler

@ray.remote(num_cpus=0)
class Worker:
    def __init__(self):
        self.prof = profiler.from_env()
    def step(self, number):
        with self.prof.step(number), self.prof.range("train"):
            time.sleep(0.02)
        return os.getpid()
    def ready(self):
        return True

ray.init(log_to_driver=False, logging_level="error")
workers = {}
for key in [(kind, rank) for kind in ("session_worker", "range_worker") for rank in range(4)]:
    workers[key] = Worker.options(runtime_env=profiler.runtime_env(*key)).remote()
    ray.get(workers[key].ready.remote(), timeout=120)  # one nsys starts at a time: this is about how they end
for number in range(1, 7):
    pids = dict(zip(workers, ray.get([worker.step.remote(number) for worker in workers.values()], timeout=120)))
for kind in ("session_worker", "range_worker"):
    ray.kill(workers.pop((kind, 0)))
    workers.pop((kind, 1)).__ray_terminate__.remote()
    del workers[kind, 2]
until = time.monotonic() + 90
while time.monotonic() < until and any(os.path.exists(f"/proc/{pid}") for key, pid in pids.items() if key[1] < 3):
    time.sleep(0.1)
print("LEFT", sorted(rank for (_, rank), pid in pids.items() if os.path.exists(f"/proc/{pid}")), flush=True)
if sys.argv[1] == "crash":
    os.kill(os.getpid(), signal.SIGKILL)
until = time.monotonic() + 200  # the other job's Ray is within reach of `ray stop`: the sandbox's nodes share their processes
while time.monotonic() < until and not glob.glob(glob.escape(sys.argv[2]) + "/nodes/*.json"):
    time.sleep(0.2)
subprocess.run([sys.executable, "-c", "from ray.scripts.scripts import main; main()", "stop"], timeout=200)
time.sleep(5)
sys.exit(9)
"""


@pytest.fixture(scope="module")
def jobs(slurm_sandbox):
    """The two jobs, side by side on a node each: {"crash" or "ray stop": (job, how Slurm saw it end)}."""
    slurm_sandbox.heal()
    folder = slurm_sandbox.shared / "exits"
    folder.mkdir(exist_ok=True)
    trainer, request = folder / "trainer.py", folder / "profile.json"
    trainer.write_text(TRAINER)
    request.write_text(json.dumps({"captures": [
        {"workers": ["session_worker"], "steps": "3:5, 6:9", "options": {"t": "nvtx"}},
        {"workers": ["range_worker"], "steps": "3:5, 6:9", "options": {"t": "nvtx", "capture-range": "nvtx"}},
    ]}))  # fmt: skip

    def sent(*arguments: str) -> Job:
        command = shlex.join(["python", str(trainer), *arguments])
        return Job.submit(
            slurm_sandbox, nodes=1, COMMAND=command, RLPROF_REQUEST=str(request), RAY_LOG_SYNC_FREQUENCY="2"
        )

    crash = sent("crash")
    both = {"crash": crash, "ray stop": sent("ray stop", str(crash.run))}
    return {end: (job, job.wait(timeout=700)) for end, job in both.items()}


@pytest.mark.parametrize("end", ["crash", "ray stop"])
@pytest.mark.parametrize("rank", WAYS, ids=WAYS.get)
@pytest.mark.parametrize("kind", ["session_worker", "range_worker"])
def test_a_window_that_had_ended_is_home(jobs, end, rank, kind):
    job, state = jobs[end]
    captures = {(c.worker, c.rank, c.start): c for c in job.manifest.captures}

    assert state.exit_code != 0
    assert "LEFT [3, 3]" in (job.run / "logs/driver.log").read_text(), job.say()
    assert captures[kind, rank, 3].state in ("ok", "recovered"), (captures[kind, rank, 3], job.say())
    second = captures[kind, rank, 6]
    assert second.state in ("ok", "recovered") or second.reason, (
        "what was open is there, or it is said why not"
    )
