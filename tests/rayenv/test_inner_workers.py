"""Real Ray and real nsys: an engine's inner workers on a node whose supervisor opens windows."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("ray")

from tests.real_nsys import nvtx_ranges
from tests.waits import wait_until

from rlprof_ops import rayenv
from rlprof_ops.backends.nsight import nsys_cli
from rlprof_ops.collect.event_logs import read_node
from rlprof_ops.job.knobs import python_path
from rlprof_ops.request import request_from_dict
from rlprof_ops.runtime.process import session_file
from rlprof_ops.supervisor.steps.session_windows import Windows
from rlprof_ops.supervisor.steps.step_relay import StepRelay

pytestmark = [pytest.mark.ray, pytest.mark.nsys, pytest.mark.whole, pytest.mark.timeout(700)]

# vLLM's RayDistributedExecutor in a generation worker (vllm/v1/executor/ray_executor.py) with the `nsight`
# that NeMo RL puts on its inner workers (`_patch_vllm_nsight_config`), or vLLM's own.
DRIVER = r"""
import json, sys
import ray

ray.init(num_cpus=1, include_dashboard=False, _temp_dir=sys.argv[1], log_to_driver=False)

class RayWorkerWrapper:
    def execute_method(self, method):
        import nvtx
        with nvtx.annotate(method, domain="vllm"):
            pass
    def start_gpu_profiling(self, what):
        from rlprof_ops.runtime.step_clock import ask_window
        return ask_window(what)  # torch.cuda.profiler's calls, which need CUDA

@ray.remote(num_cpus=0)
class VllmGenerationWorker:
    def start(self, tensor_parallel_size, nsight):
        kwargs = {"num_cpus": 0}
        kwargs.setdefault("runtime_env", {}).update({"nsight": nsight})
        self.workers = [ray.remote(**kwargs)(RayWorkerWrapper).remote() for _ in range(tensor_parallel_size)]
        self.collective_rpc("execute_method", "load_model")
    def collective_rpc(self, name, word):
        return ray.get([getattr(worker, name).remote(word) for worker in self.workers], timeout=200)

engine = VllmGenerationWorker.options(runtime_env={"env_vars": {"RANK": "2"}}).remote()
ray.get(engine.start.remote(2, json.loads(sys.argv[2])), timeout=300)
print("ready", flush=True)
for line in sys.stdin:
    print(ray.get(engine.collective_rpc.remote(*line.split()), timeout=200), flush=True)
"""
NEMO_RL = {
    "t": "nvtx",
    "o": "'vllm_tp_worker_3:5_%p'",
    "stop-on-exit": "true",
    "s": "none",
    "capture-range": "cudaProfilerApi",
    "capture-range-end": "repeat",
}
VLLM = {"t": "cuda,cudnn,cublas", "o": "'worker_process_%p'", "cuda-graph-trace": "node"}


@pytest.mark.parametrize("options", [NEMO_RL, VLLM], ids=["nemo_rl", "vllm"])
def test_their_windows_are_final_while_they_go_on(tmp_path: Path, options: dict[str, str]) -> None:
    node_dir, ray_dir = tmp_path / "node", Path(f"/tmp/rlprof-i{os.getpid()}")
    for name in ("tmp", "events", "profiles"):
        (node_dir / name).mkdir(parents=True)
    request = request_from_dict(
        {"captures": [{"workers": "vllm_tp_worker", "ranks": [3], "steps": "2:4", "options": {"t": "nvtx"}}]}
    )
    env = {k: v for k, v in os.environ.items() if not k.startswith(("RLPROF_", "RAY_", "NRL_"))}
    env |= rayenv.environment() | {
        "PYTHONPATH": python_path(os.pathsep.join(sys.path)),
        "RLPROF_JOB": "79",
        "RLPROF_NODE": "n1",
        "RLPROF_NODE_DIR": str(node_dir),
        "RLPROF_REQUEST_JSON": request.to_json(),
        "RAY_AUTH_MODE": "disabled",
    }

    async def job() -> None:
        windows = Windows(node_dir, request, print)
        relay = StepRelay(node_dir, "n1", windows, lambda _: asyncio.sleep(0), print)
        await relay.listen(lambda: ())
        driver = await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", DRIVER, str(ray_dir), json.dumps(options)),
            env=env,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        assert driver.stdin is not None and driver.stdout is not None

        async def call(words: str) -> str:
            driver.stdin.write(f"{words}\n".encode())
            return await said()

        async def said() -> str:
            return (await asyncio.wait_for(driver.stdout.readline(), 240)).decode().strip()

        try:
            line = await said()
            while line != "ready":  # Ray warns of many workers there
                assert line, "the driver has ended"
                line = await said()
            for step in (1, 2, 3, 4):
                await windows.begin(step)
                await call(f"execute_method step{step}")
                windows.end(step)
            if options is NEMO_RL:
                assert await call("start_gpu_profiling start") == "[False, True]"
                await call("execute_method theirs")
                assert await call("start_gpu_profiling stop") == "[False, True]"
            await asyncio.to_thread(wait_until, finished, seconds=200)
            assert all(Path(f"/proc/{log.pid}").exists() for log in logs())
            await windows.close()
        finally:
            driver.stdin.close()
            await asyncio.wait_for(driver.wait(), 120)
            relay.close()

    def logs() -> list:
        return [log for log in read_node(node_dir / "events") if log.windows]

    def finished() -> bool:
        closed = [event for log in logs() for event in log.windows if event.event == "closed"]
        return len(closed) == (2 if options is NEMO_RL else 1)

    try:
        asyncio.run(job())
    finally:
        shutil.rmtree(ray_dir, ignore_errors=True)
    [session] = session_file.read_all(node_dir, ended=True)
    assert (session.worker, session.rank, session.gate) == ("vllm_tp_worker", 3, "supervisor")
    [log] = logs()
    assert (log.worker, log.rank) == ("vllm_tp_worker", 3)
    closed = [event for event in log.windows if event.event == "closed"]
    reports = [node_dir / event.path for event in closed]
    assert all(nsys_cli.check(report).state == "ok" for report in reports)
    assert (closed[0].start, closed[0].stop) == (2, 4)
    assert not list(node_dir.glob("inplace/**/*.nsys-rep")), "nothing for their whole life"
    if options is NEMO_RL:
        ranges = set(nvtx_ranges(reports[0], node_dir))
        assert {"step2", "step3"} <= ranges and not {"step1", "theirs"} & ranges
        assert "theirs" in nvtx_ranges(reports[1], node_dir)
