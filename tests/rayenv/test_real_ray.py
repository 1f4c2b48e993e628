"""Real Ray and real nsys: two wrapped actors at once, each with its own interpreter, windows and reports."""

import json
import os
import shutil
import subprocess
import sys

import pytest
from tests.real_nsys import nvtx_ranges
from tests.waits import wait_until

from rlprof_ops.backends.nsight import nsys_cli

pytestmark = [
    pytest.mark.ray,
    pytest.mark.nsys,
    pytest.mark.timeout(500),
]

DRIVER = r"""
import json, os, sys, time
import ray
from rlprof_ops.runtime import profiler

ray.init(num_cpus=3, include_dashboard=False, _temp_dir=sys.argv[1], logging_level="error", log_to_driver=False)

@ray.remote(num_cpus=1)
class Actor:
    def __init__(self, rank):
        self.prof = profiler.from_env(worker="policy_worker", rank=rank, world_size=2)
    def who(self):
        return {"python": sys.executable, "pid": os.getpid(), "session": os.environ.get("RLPROF_NSYS_SESSION"), "rank": os.environ.get("RLPROF_RANK")}
    def step(self, n, fail=False):
        with self.prof.step(n):
            with self.prof.range("train"):
                time.sleep(0.01)
                if fail:
                    raise ValueError("mine")
    def close(self):
        self.prof.close()

def actor(worker, rank):
    return Actor.options(runtime_env=profiler.runtime_env(worker, rank)).remote(rank)

a, b, plain = actor("policy_worker", 0), actor("policy_worker", 1), actor("reward", 0)
print(json.dumps(ray.get([x.who.remote() for x in (a, b, plain)])), flush=True)
for n in range(1, 6):
    ray.get([a.step.remote(n), b.step.remote(n)])
# rank 0: its actor method fails inside the next window; rank 1 is killed inside it.
try:
    ray.get(a.step.remote(7, True))
except ValueError:
    print("the user's error came out", flush=True)
ray.get(b.step.remote(7))
ray.kill(b)
ray.get(a.close.remote())
print("done", flush=True)
"""


def test_two_actors_are_profiled_at_once(tmp_path):
    from rlprof_ops import rayenv
    from rlprof_ops.request import request_from_dict

    node_dir = tmp_path / "node"
    node_dir.mkdir()
    ray_dir = f"/tmp/rlprof-t{os.getpid()}"  # Unix sockets allow 107 bytes
    request = request_from_dict({"captures": [{"workers": "*policy*", "steps": "3:5,7:9"}]})
    env = {
        **os.environ,
        **rayenv.environment(),
        "PYTHONPATH": os.pathsep.join(sys.path),
        "RLPROF_JOB": "4711",
        "RLPROF_NODE": "n1",
        "RLPROF_NODE_DIR": str(node_dir),
        "RLPROF_REQUEST_JSON": request.to_json(),
        "RAY_AUTH_MODE": "disabled",
        "RAY_ADDRESS": "",
    }
    try:
        done = subprocess.run(
            [sys.executable, "-c", DRIVER, ray_dir], env=env, capture_output=True, text=True, timeout=400
        )
    finally:
        shutil.rmtree(ray_dir, ignore_errors=True)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    who = json.loads(lines[0])
    assert lines[1:] == ["the user's error came out", "done"]

    assert {one["python"] for one in who} == {sys.executable}
    assert [one["rank"] for one in who] == ["0", "1", None]
    assert who[0]["session"] != who[1]["session"] and who[2]["session"] is None
    assert json.loads((node_dir / "plugin_loaded").read_text())["pid"]

    reports = sorted(
        path.relative_to(node_dir / "profiles").as_posix() for path in node_dir.glob("profiles/*/*/*/*")
    )
    assert reports == [
        f"nsight/policy_worker/rank0/policy_worker_rank0_step3-4_n1_{who[0]['pid']}.nsys-rep",
        f"nsight/policy_worker/rank0/policy_worker_rank0_step7-8_n1_{who[0]['pid']}.nsys-rep",
        f"nsight/policy_worker/rank1/policy_worker_rank1_step3-4_n1_{who[1]['pid']}.nsys-rep",
    ]
    for report in (reports[0], reports[2]):
        assert nvtx_ranges(node_dir / "profiles" / report, tmp_path, ended=True) == [
            "step 3",
            "step 4",
            "train",
            "train",
        ]
    assert nvtx_ranges(node_dir / "profiles" / reports[1], tmp_path, ended=True) == ["step 7", "train"]

    # ray.kill gives a process no chance; nsys itself writes the report, under its final name, for the
    # collector.
    killed = node_dir / "tmp" / f"policy_worker_rank1_step7-8_n1_{who[1]['pid']}.nsys-rep"
    wait_until(lambda: killed.exists() and nsys_cli.check(killed).state == "ok")
    assert "step 8" not in nvtx_ranges(killed, tmp_path, ended=True)
