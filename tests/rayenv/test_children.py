"""Real Ray and real nsys: what a profiled actor creates. Children that nobody selected, and the inner
workers of an engine.
"""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("ray")

from rlprof_ops import rayenv
from rlprof_ops.request import request_from_dict

pytestmark = [pytest.mark.ray, pytest.mark.nsys, pytest.mark.whole, pytest.mark.timeout(700)]

DRIVER = r'''
import json, os, sys, time
from pathlib import Path
import ray

ray.init(num_cpus=1, include_dashboard=False, _temp_dir=sys.argv[1], logging_level="error", log_to_driver=False)
STOCK = {"t": "nvtx", "s": "none", "cpuctxsw": "none", "o": "'dtensor_policy_worker_3:5_%p'"}

def me():
    with open(f"/proc/{os.getppid()}/cmdline", "rb") as file:
        parent = file.read().decode().split("\0")
    wrap = parent[1] if parent[0].endswith("nsys") else parent[0].rpartition("/")[2] if "nsys" in parent[0] else ""
    return {"pid": os.getpid(), "nsys": wrap, "rank": os.environ.get("RANK"), "ours": os.environ.get("RLPROF_RANK"), "hook": os.environ.get("SEEN")}

@ray.remote(num_cpus=0)
class Child:
    def me(self):
        return me()

@ray.remote(num_cpus=0)
def task():
    return me()

@ray.remote(num_cpus=0)
class Parent:
    def family(self, own):
        self.children = {
            "bare": Child.remote(),
            "variables": Child.options(runtime_env={"env_vars": {"SEEN": "1"}}).remote(),
            "own": Child.options(runtime_env=own).remote(),
        }
        refs = {name: child.me.remote() for name, child in self.children.items()}
        refs |= {"task": task.remote(), "task with variables": task.options(runtime_env={"env_vars": {"SEEN": "1"}}).remote()}
        return {"parent": me(), **{name: ray.get(ref, timeout=200) for name, ref in refs.items()}}

class RayWorkerWrapper:
    """As vLLM has it: it learns its rank as an argument, after its process was started."""
    def __init__(self, rpc_rank):
        self.rpc_rank = rpc_rank
    def execute_method(self, method):
        import nvtx
        with nvtx.annotate(method, domain="vllm"):
            return {"rpc_rank": self.rpc_rank, **me()}

@ray.remote(num_cpus=0)
class VllmGenerationWorker:
    """Stands in for a generation worker with vLLM's RayDistributedExecutor in it (vllm/v1/executor/ray_executor.py)."""
    def start(self, tensor_parallel_size, nsight):
        kwargs = {"num_cpus": 0}
        # _configure_ray_workers_use_nsight
        kwargs.setdefault("runtime_env", {}).update({"nsight": nsight})
        self.workers = [ray.remote(**kwargs)(RayWorkerWrapper).remote(rpc_rank=rank) for rank in range(tensor_parallel_size)]
    def collective_rpc(self, method):
        return {"outer": me(), "inner": ray.get([worker.execute_method.remote(method) for worker in self.workers], timeout=200)}
    def shutdown(self):
        ray.wait([worker.__ray_terminate__.remote() for worker in self.workers], num_returns=len(self.workers), timeout=60)

own = {"rlprof": {"worker": "reward", "rank": 0}}
parents = {
    "ours": Parent.options(runtime_env={"rlprof": {"worker": "policy_worker", "rank": 0}, "env_vars": {"RANK": "0"}}).remote(),
    "stock": Parent.options(runtime_env={"nsight": STOCK, "env_vars": {"RANK": "0"}}).remote(),
}
families = {name: parent.family.remote(own) for name, parent in parents.items()}
said = {name: ray.get(ref, timeout=300) for name, ref in families.items()}

# Two engines of two, as NeMo RL has them: the rank of the outer actor is that of its first GPU. Only 2 and 3 are asked for.
INNER = {"t": "nvtx", "s": "none", "cpuctxsw": "none", "o": "'vllm_tp_worker_3:5_%p'"}
engines = [VllmGenerationWorker.options(runtime_env={"env_vars": {"RANK": str(rank)}}).remote() for rank in (0, 2)]
for engine in engines:
    ray.get(engine.start.remote(2, INNER), timeout=200)
    said.setdefault("engines", []).append(ray.get(engine.collective_rpc.remote("generate"), timeout=200))
ray.get([engine.shutdown.remote() for engine in engines], timeout=200)
# Their nsys still writes; the end of Ray would kill it, for which a job waits.
written, until = Path(os.environ["RLPROF_NODE_DIR"], "inplace/nsight/vllm_tp_worker"), time.monotonic() + 90
while len([*written.glob("*/*.nsys-rep")]) < 2 and time.monotonic() < until:
    time.sleep(0.1)
print("SAID", json.dumps(said), flush=True)
'''


@pytest.fixture(scope="module")
def job(tmp_path_factory):
    """What each process said of itself, and the node folder."""
    node_dir = tmp_path_factory.mktemp("node")
    ray_dir = f"/tmp/rlprof-k{os.getpid()}"
    request = request_from_dict({"captures": [
        {"workers": ["*policy_worker", "reward"], "ranks": [0], "steps": "3:5", "options": {"t": "nvtx"}},
        {"workers": ["vllm_tp_worker"], "ranks": [2, 3], "steps": "3:5"},
    ]})  # fmt: skip
    env = {k: v for k, v in os.environ.items() if not k.startswith(("RLPROF_", "RAY_", "NRL_"))}
    env |= rayenv.environment() | {
        "PYTHONPATH": os.pathsep.join(sys.path),
        "RLPROF_JOB": "78",
        "RLPROF_NODE": "n1",
        "RLPROF_NODE_DIR": str(node_dir),
        "RLPROF_REQUEST_JSON": request.to_json(),
        "RAY_AUTH_MODE": "disabled",
    }
    try:
        done = subprocess.run(
            [sys.executable, "-c", DRIVER, ray_dir], env=env, capture_output=True, text=True, timeout=600
        )
        log = "".join(
            path.read_text(errors="replace")[-3000:]
            for path in Path(ray_dir).glob("session_latest/logs/runtime_env_*.log")
        )
    finally:
        shutil.rmtree(ray_dir, ignore_errors=True)
    assert done.returncode == 0, done.stdout + done.stderr + log
    said = next(
        line for line in done.stdout.splitlines() if line.startswith("SAID ")
    )  # Ray warns of many workers there
    return json.loads(said[5:]), node_dir


@pytest.mark.parametrize("who", ["ours", "stock"])
def test_children_that_nobody_selected_do_not_inherit_a_profiler(job, who):
    said, _ = job
    family = said[who]

    assert "nsys" in family["parent"]["nsys"] or family["parent"]["nsys"] in ("launch", "profile")
    for name in ("bare", "variables", "task", "task with variables"):
        assert family[name]["nsys"] == "" and family[name]["ours"] is None, name
    assert family["bare"]["rank"] == "0", "the rest of the runtime env is inherited as ever"
    assert (family["variables"]["rank"], family["variables"]["hook"]) == ("0", "1")


@pytest.mark.parametrize("who", ["ours", "stock"])
def test_a_child_with_a_name_of_its_own_is_profiled_under_it(job, who):
    said, _ = job

    assert said[who]["own"]["nsys"] and said[who]["own"]["ours"] == "0"


def test_inner_workers_of_an_engine_have_ranks_of_their_own(job):
    said, node_dir = job
    first, second = said["engines"]

    assert [engine["outer"]["nsys"] for engine in (first, second)] == ["", ""]
    assert sorted(one["ours"] for one in first["inner"]) == ["0", "1"]
    assert sorted(one["ours"] for one in second["inner"]) == ["2", "3"]
    assert [one["nsys"] for one in first["inner"]] == ["", ""], "not selected"
    assert all(one["nsys"] for one in second["inner"])
    reports = sorted(
        path.relative_to(node_dir).as_posix()
        for path in node_dir.glob("inplace/nsight/vllm_tp_worker/*/*")
        if path.suffix != ".qdstrm"  # lies beside the report where nsys's importer failed at its end
    )
    assert reports == sorted(
        f"inplace/nsight/vllm_tp_worker/rank{one['ours']}/vllm_tp_worker_rank{one['ours']}_step3-4_n1_{one['pid']}.nsys-rep"
        for one in second["inner"]
    )
