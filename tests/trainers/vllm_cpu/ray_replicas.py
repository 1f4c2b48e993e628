"""A driver with two replicas of vLLM, each an engine in a Ray actor with vLLM's own /metrics, that get uneven
requests in each of three steps: ray_replicas.py MODEL FOLDER

Replica 0 has a small cache and gets more and longer requests, the longest of them `planted`. One sample of
replica 1 has a second turn after a tool that sleeps. FOLDER gets `replica<n>.json`: what vLLM itself says of
every request, and its /metrics.
"""

import asyncio
import json
import os
import sys
import time
import urllib.request
from dataclasses import asdict
from pathlib import Path

sys.path.append(str(Path(__file__).parent))

import ray
from lengths import LONG, PLANTED, SHORT, STEPS, TOOL_S

from rlprof_ops.runtime import profiler

BLOCKS = (10, 64)  # of the cache of each replica, 32 tokens in a block


@ray.remote(num_cpus=0)
class Rollout:
    async def serve(self, model: str, blocks: int) -> None:
        """Start the engine, and vLLM's endpoint of metrics on a port that is free."""
        import uvicorn
        from fastapi import FastAPI
        from vllm import AsyncEngineArgs
        from vllm.entrypoints.serve.instrumentator.metrics import attach_router
        from vllm.v1.engine.async_llm import AsyncLLM

        options = AsyncEngineArgs(
            model=model,
            dtype="float32",
            enforce_eager=True,
            max_model_len=288,
            max_num_seqs=8,
            block_size=32,
            num_gpu_blocks_override=blocks,
            enable_prefix_caching=False,
            disable_log_stats=False,
        )
        self.engine = AsyncLLM.from_engine_args(options)
        self.told: list[dict[str, object]] = []
        app = FastAPI()
        attach_router(app)
        self.server = uvicorn.Server(uvicorn.Config(app, host="127.0.0.1", port=0, log_level="warning"))
        self.serving = asyncio.create_task(self.server.serve())
        while not self.server.started:
            await asyncio.sleep(0.1)

    async def generate(self, name: str, prompt: list[int], tokens: int) -> list[int]:
        """The tokens of one answer, which is as long as asked."""
        from vllm import SamplingParams

        params = SamplingParams(temperature=1.0, seed=tokens, max_tokens=tokens, ignore_eos=True)
        begun = time.time()
        async for output in self.engine.generate({"prompt_token_ids": prompt}, params, name):
            last = output
        [answer] = last.outputs
        # one of the last messages may hold the last tokens alone
        said = asdict(last.metrics)
        self.told.append(
            {
                "id": name,
                "prompt": len(last.prompt_token_ids),
                "tokens": said["num_generation_tokens"],
                "reason": answer.finish_reason,
                "metrics": said,
                "within": [begun, time.time()],
            }
        )
        return list(answer.token_ids)

    async def converse(self, name: str, prompt: list[int], tokens: int) -> None:
        """Two turns, with a tool between them that sleeps."""
        answer = await self.generate(name, prompt, tokens)
        await asyncio.sleep(TOOL_S)
        await self.generate(f"{name}b", [*prompt, *answer, 5, 6, 7], tokens)

    async def end(self, path: str) -> None:
        [server] = self.server.servers
        port = server.sockets[0].getsockname()[1]
        read = await asyncio.to_thread(_read, f"http://127.0.0.1:{port}/metrics")
        said = {"outputs": self.told, "metrics": read, "wall_of_monotonic": time.time() - time.monotonic()}
        Path(path).write_text(json.dumps(said))
        self.server.should_exit = True
        await self.serving
        self.engine.shutdown()
        await asyncio.sleep(2)  # requests are written down once a second


def _read(url: str) -> str:
    with urllib.request.urlopen(url, timeout=60) as answer:
        said: bytes = answer.read()
    return said.decode()


def main(model: str, folder: str) -> None:
    # as verl does it: workers of a Ray that somebody else has started have these variables alone
    names = ("VLLM_", "OMP_", "HF_", "TOKENIZERS_", "TORCHINDUCTOR_", "PYTHONUNBUFFERED")
    variables = {name: value for name, value in os.environ.items() if name.startswith(names)}
    ray.init(address="auto", runtime_env={"env_vars": variables})
    lead = profiler.from_env(worker="driver")
    replicas = [
        Rollout.options(
            runtime_env={"env_vars": {**variables, "RLPROF_WORKER": "rollout", "RLPROF_RANK": str(rank)}}
        ).remote()
        for rank in range(len(BLOCKS))
    ]
    ray.get([each.serve.remote(model, blocks) for each, blocks in zip(replicas, BLOCKS, strict=True)])
    for step in range(1, STEPS + 1):
        with lead.step(step):
            with lead.range("generation"):
                asked = [("planted", 0, PLANTED)]
                asked += [(f"long{n}", 0, count) for n, count in enumerate(LONG)]
                asked += [(f"short{n}", 1, count) for n, count in enumerate(SHORT)]
                told = [
                    replicas[rank].generate.remote(f"{name}-{step}", [rank + 3, step, number, 9], count)
                    for number, (name, rank, count) in enumerate(asked)
                ]
                told.append(replicas[1].converse.remote(f"tool-{step}", [8, step, 8, 8], 6))
                ray.get(told)
            with lead.range("train"):
                time.sleep(0.5)
    ray.get([each.end.remote(f"{folder}/replica{rank}.json") for rank, each in enumerate(replicas)])
    lead.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
