"""A trainer that is all profiling and no training: two actors on two nodes, steps, and a fault where it is
told.

It holds in the middle of step HOLD, inside the second window, until `<progress>.go` appears or FAULT makes an
end.
"""

import argparse
import json
import os
import signal
import sys
import tempfile
import time
from pathlib import Path

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from rlprof_ops.runtime import profiler

HOLD = 9
FIRST, SECOND = "2:4", "9:11"


class RayNsightWorker:
    """The same rank under Ray's own nsight plugin: a window is a capture range, as in trainers that call
    the profiler API.
    """

    def __init__(self, rank: int) -> None:
        self.capture = None

    def where(self) -> tuple[str, int]:
        return os.uname().nodename, os.getpid()

    def begin(self, step: int) -> None:
        import nvtx

        if step in (2, HOLD):
            self.capture = nvtx.start_range("capture", domain="rlprof")
        self.step = nvtx.start_range(f"step {step}", domain="rlprof")

    def work(self, seconds: float) -> None:
        time.sleep(seconds)

    def end(self, last: bool = False) -> None:
        import nvtx

        nvtx.end_range(self.step)
        if self.capture and last:
            nvtx.end_range(self.capture)
            self.capture = None

    def die(self) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    def close(self) -> None:
        pass


# NeMo RL's options (nemo_rl/distributed/worker_group_utils.py) with an NVTX range in place of
# cudaProfilerApi, for machines without a GPU, and `repeat`, without which there is one window only.
RAY_NSIGHT = {
    "t": "nvtx",
    "o": "'policy_worker_2:11_%p'",
    "s": "none",
    "cpuctxsw": "none",
    "capture-range": "nvtx",
    "nvtx-capture": "capture@rlprof",
    "capture-range-end": "repeat",
    "stop-on-exit": "true",
}


class PolicyWorker:
    """One rank; its step is a range and a little sleep."""

    def __init__(self, rank: int) -> None:
        self.prof = profiler.from_env(worker="policy_worker", rank=rank, world_size=2)

    def where(self) -> tuple[str, int]:
        return os.environ.get("RLPROF_NODE", ""), os.getpid()

    def begin(self, step: int) -> None:
        self.open = self.prof.step(step)
        self.open.__enter__()

    def work(self, seconds: float) -> None:
        with self.prof.range("train"):
            time.sleep(seconds)

    def end(self, last: bool = False) -> None:
        self.open.__exit__(None, None, None)

    def die(self) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    def profile_itself(self) -> int:
        """How many of three operators are in the trace of a torch.profiler of the worker's own."""
        import torch

        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as own:
            for _ in range(3):
                torch.ones(4, 4) @ torch.ones(4, 4)
        with tempfile.TemporaryDirectory() as folder:
            trace = Path(folder) / "own.json"
            own.export_chrome_trace(str(trace))
            events = json.loads(trace.read_text())["traceEvents"]
        return sum(event.get("name") == "aten::mm" for event in events)

    def umask(self) -> int:
        """What files that this process makes may not have."""
        mask = os.umask(0o077)
        os.umask(mask)
        return mask

    def close(self) -> None:
        self.prof.close()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--progress", required=True)
    parser.add_argument("--fault", default="")
    parser.add_argument("--style", choices=("rlprof", "ray-nsight"), default="rlprof")
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--seconds", type=float, default=0.1, help="of work in a step")
    parser.add_argument("--new-workers", action="store_true", help="start a worker a node in the held step")
    arguments = parser.parse_args()
    progress = Path(arguments.progress)
    ray.init(address="auto")
    ours = arguments.style == "rlprof"
    worker = ray.remote(PolicyWorker if ours else RayNsightWorker)
    theirs = {"nsight": RAY_NSIGHT, "env_vars": {"NSYS_NVTX_PROFILER_REGISTER_ONLY": "0"}}
    workers = [
        worker.options(
            num_cpus=1,
            num_gpus=2,
            runtime_env=profiler.runtime_env("policy_worker", rank) if ours else theirs,
        ).remote(rank)
        for rank in range(2)
    ]
    places = ray.get([each.where.remote() for each in workers], timeout=300)
    if len({node for node, _ in places}) != 2:
        sys.exit(f"the two workers sit on {places}, not on two nodes")
    total = 0
    for step in range(1, arguments.steps + 1):
        ray.get([each.begin.remote(step) for each in workers])
        ray.get([each.work.remote(arguments.seconds) for each in workers])
        progress.write_text(f"{step} {places[0][0]} {places[1][0]}")
        if step == HOLD:
            hold(progress, arguments.fault, workers)
            if arguments.new_workers:
                start_workers()
        ray.get([each.end.remote(step in (3, HOLD + 1)) for each in workers])
        total += step
    if ours:
        print(f"umasks {ray.get([each.umask.remote() for each in workers])}", flush=True)
    ray.get([each.close.remote() for each in workers])
    print(f"result {total}", flush=True)


def start_workers() -> None:
    """A process of its own on each node, which reads all that a new worker reads."""
    alone = ray.remote(num_cpus=0, runtime_env={"env_vars": {"NEW": "1"}})(lambda: os.getpid())
    nodes = [node["NodeID"] for node in ray.nodes() if node["Alive"]]
    there = [
        alone.options(scheduling_strategy=NodeAffinitySchedulingStrategy(each, soft=False)) for each in nodes
    ]
    assert all(ray.get([each.remote() for each in there], timeout=240))


def hold(progress: Path, fault: str, workers: list) -> None:
    if fault == "exit7":
        sys.exit(7)
    if fault == "kill_driver":
        os.kill(os.getpid(), signal.SIGKILL)
    if fault == "kill_actor":
        workers[1].die.remote()
        ray.get(workers[1].where.remote())  # raises: the actor is dead
    if fault == "own_profiler":
        traced = ray.get([each.profile_itself.remote() for each in workers])
        assert traced == [3, 3], traced
    go, until = progress.with_suffix(".go"), time.monotonic() + 120
    while not go.exists() and time.monotonic() < until:
        time.sleep(0.05)


if __name__ == "__main__":
    main()
