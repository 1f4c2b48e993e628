"""A driver with one vLLM server of two tensor parallel ranks in a Ray actor, as trainers have it:
tensor_parallel.py MODEL EXECUTOR, which is vLLM's `mp` or `ray`.

Each of five steps generates. After the last one the server goes on serving until all windows are closed, at
most for `SERVES_S`: a report is written beside it, by an nsys that waits for its turn.
"""

import os
import sys
import time
from pathlib import Path

import ray

from rlprof_ops.collect import event_logs
from rlprof_ops.runtime import profiler

STEPS, SERVES_S = 5, 400.0
WINDOWS = {"mp": 2, "ray": 6}  # of two steps: the server's, and with `ray` of two inner workers


@ray.remote(num_cpus=0)
class Rollout:
    def __init__(self, model: str, executor: str) -> None:
        from vllm import LLM, SamplingParams

        self.llm = LLM(
            model=model,
            dtype="float32",
            enforce_eager=True,
            max_model_len=128,
            max_num_seqs=8,
            tensor_parallel_size=2,
            distributed_executor_backend=executor,
        )
        self.params = SamplingParams(temperature=1.0, max_tokens=48, ignore_eos=True)

    def generate(self) -> int:
        outputs = self.llm.generate(["What is one", "What is two"], self.params, use_tqdm=False)
        return sum(len(one.token_ids) for each in outputs for one in each.outputs)


def closed(events: Path) -> int:
    logs = event_logs.read_node(events)
    return sum(event.event == "closed" for log in logs for event in log.windows)


def main(model: str, executor: str) -> None:
    # as verl does it: workers of a Ray that somebody else has started have these variables alone
    names = ("VLLM_", "OMP_", "HF_", "TOKENIZERS_", "TORCHINDUCTOR_", "PYTHONUNBUFFERED")
    variables = {name: value for name, value in os.environ.items() if name.startswith(names)}
    ray.init(address="auto", runtime_env={"env_vars": variables})
    lead = profiler.from_env(worker="driver")
    server = Rollout.remote(model, executor)
    ray.get(server.generate.remote())
    for step in range(1, STEPS + 1):
        with lead.step(step), lead.range("generation"):
            print(f"step {step}: {ray.get(server.generate.remote())} tokens", flush=True)
    until, events = time.monotonic() + SERVES_S, Path(os.environ["RLPROF_NODE_DIR"]) / "events"
    while time.monotonic() < until and closed(events) < WINDOWS[executor]:
        ray.get(server.generate.remote())
    print(f"served until {time.time_ns()}", flush=True)
    lead.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
