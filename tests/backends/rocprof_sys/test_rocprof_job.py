"""A whole job with workers under (a stand-in for) rocprof-sys: one of the request's own, one with Ray's
own key.
"""

import json
import os
import shlex
import sys

import pytest

pytest.importorskip("ray")

from tests.backends.rocprof_sys import rocprof_stand_in

pytestmark = [pytest.mark.ray, pytest.mark.whole]

TRAINER = r"""
import os, sys, time
import ray
from rlprof_ops.runtime import profiler

@ray.remote(num_cpus=0)
class Worker:
    def __init__(self, name, rank):
        self.prof = profiler.from_env(worker=name, rank=rank)
    def train(self):
        for step in range(1, 6):
            with self.prof.step(step):
                time.sleep(0.02)
        self.prof.close()
        return sys.executable, os.getpid()

ray.init(log_to_driver=False, logging_level="error")
workers = [
    Worker.options(runtime_env=profiler.runtime_env("policy_worker", 1)).remote("policy_worker", 1),
    Worker.options(runtime_env={"_rocprof_sys": "default", "env_vars": {"RANK": "4", "SECRET": "hunter2"}}).remote("critic", 4),
]
for worker in workers:
    print(*ray.get(worker.train.remote(), timeout=200), sep="|", flush=True)
ray.wait([worker.__ray_terminate__.remote() for worker in workers], num_returns=2, timeout=30)
time.sleep(2)
"""


def test_traces_come_home_named_and_secrets_stay(tmp_path, monkeypatch):
    from rlprof_ops.demo.local_job import run_local

    for name in [name for name in os.environ if name.startswith(("RLPROF_", "RAY_"))]:
        monkeypatch.delenv(name)
    script = rocprof_stand_in.install(tmp_path / "opt rocm")
    monkeypatch.setenv("PATH", f"{script.parent}{os.pathsep}{os.environ['PATH']}")
    trainer = tmp_path / "trainer.py"
    trainer.write_text(TRAINER)
    request = tmp_path / "profile.yaml"
    request.write_text(
        "captures: [{backend: rocprof_sys, workers: [policy_worker, worker_process], ranks: [1, 4], steps:"
        " '3:5'}]"
    )
    lines = []

    result = run_local(
        tmp_path,
        {"COMMAND": shlex.join([sys.executable, str(trainer)]), "RLPROF_REQUEST": str(request)},
        lines.append,
    )

    (own_python, own_pid), (other_python, other_pid) = (
        line.split("|") for line in lines if "|" in line and "/" in line and "rank" not in line
    )
    assert result.exit_code == 0, lines
    assert own_python == other_python == sys.executable
    host = os.uname().nodename
    own = (
        result.run.path
        / f"profiles/rocprof_sys/policy_worker/rank1/policy_worker_rank1_step3-4_{host}_{own_pid}_perfetto-trace.proto"
    )
    other = (
        result.run.path
        / f"profiles/rocprof_sys/worker_process/rank4/worker_process_rank4_{host}_{other_pid}_perfetto-trace.proto"
    )
    ((begin, end),) = json.loads(own.read_text())["sections"]
    assert 0.03e9 < end - begin < 2e9, "two steps of 20 ms, not the life of the worker"
    assert other.exists()
    manifest = json.loads((result.run.path / "manifest.json").read_text())
    states = {
        (c["worker"], c["rank"], c["state"])
        for c in manifest["captures"]
        if c["worker"] == "policy_worker" and c["rank"] == 1
    }
    assert states == {("policy_worker", 1, "ok")}, manifest["captures"]
    held = [
        path
        for path in result.run.path.rglob("*")
        if path.is_file() and path.suffix in (".json", ".jsonl", ".proto")
    ]
    assert not [path for path in held if "hunter2" in path.read_text(errors="replace")]
