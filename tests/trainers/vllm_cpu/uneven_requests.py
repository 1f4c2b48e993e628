"""A driver with two replicas of vLLM, an `LLM` in a process of its own and a `vllm serve`, that get requests
of uneven length in each of three steps: uneven_requests.py MODEL FOLDER

FOLDER gets what vLLM itself says of them: `llm.json`, the outputs of the `LLM` with its own times, and
`serve.json`, the answers of the server and its /metrics.
"""

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path

sys.path.append(str(Path(__file__).parent))

from lengths import LENGTHS, SERVED, STEPS, TOOL_S

from rlprof_ops.runtime import profiler


def prompt(number: int) -> str:
    """Four answers to a prompt, on each replica."""
    return f"What is one plus {number // 4}"


def main(model: str, folder: str) -> None:
    lead = profiler.from_env(worker="driver")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    options = ["--host", "127.0.0.1", "--port", str(port), "--dtype", "float32", "--enforce-eager"]
    options += ["--max-model-len", "128", "--max-num-seqs", "32", "--api-server-count", "1"]
    vllm = str(Path(sys.executable).with_name("vllm"))
    commands = (
        [sys.executable, "-P", __file__, model, folder, "llm"],
        [sys.executable, "-P", vllm, "serve", model, *options],
    )
    llm, server = (
        subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=None if rank else subprocess.PIPE,
            env={**os.environ, "RLPROF_WORKER": "rollout", "RLPROF_RANK": str(rank)},
            text=True,
        )
        for rank, command in enumerate(commands)
    )
    assert llm.stdin is not None and llm.stdout is not None
    answers: list[dict[str, object]] = []
    try:
        until = time.monotonic() + 500
        while not answered(f"http://127.0.0.1:{port}/health"):
            assert server.poll() is None and time.monotonic() < until
            time.sleep(0.5)
        assert any(line == "ready\n" for line in llm.stdout)
        with ThreadPoolExecutor(SERVED) as pool:
            for step in range(1, STEPS + 1):
                with lead.step(step):
                    with lead.range("generation"):
                        told = [pool.submit(ask, port, model, n) for n in range(SERVED)]
                        answers += [each.result() for each in told]
                        print("go", file=llm.stdin, flush=True)  # last, whatever else the machine does
                        assert any(line == "done\n" for line in llm.stdout)
                    with lead.range("train"):
                        time.sleep(0.5)
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30) as answer:
            said = {"answers": answers, "metrics": answer.read().decode()}
        Path(folder, "serve.json").write_text(json.dumps(said))
    finally:
        llm.stdin.close()
        server.send_signal(signal.SIGINT)
        for process in (llm, server):
            try:
                process.wait(60)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
    lead.close()


def answered(url: str) -> bool:
    try:
        urllib.request.urlopen(url, timeout=5).close()
    except OSError:
        return False
    return True


def ask(port: int, model: str, number: int) -> dict[str, object]:
    body = {"model": model, "prompt": prompt(number), "max_tokens": LENGTHS[number], "ignore_eos": True}
    headers = {"Content-Type": "application/json"}
    url = f"http://127.0.0.1:{port}/v1/completions"
    request = urllib.request.Request(url, json.dumps(body).encode(), headers, method="POST")
    with urllib.request.urlopen(request, timeout=200) as answer:
        said: dict[str, object] = json.load(answer)
    return said | {"prompt": prompt(number)}


def replica(model: str, folder: str) -> None:
    """The `LLM`: a step for each line of its input. In each, one request has two answers, one sample has a
    second turn after a tool, and one request more is aborted on its way."""
    from vllm import LLM, SamplingParams

    llm = LLM(
        model=model,
        dtype="float32",
        enforce_eager=True,
        max_model_len=128,
        max_num_seqs=4,
        disable_log_stats=False,
    )

    def params(count: int, n: int = 1, seed: int = 1) -> SamplingParams:
        return SamplingParams(temperature=1.0, seed=seed, max_tokens=count, ignore_eos=True, n=n)

    print("ready", flush=True)
    told = []
    for _ in sys.stdin:
        prompts = [*map(prompt, range(len(LENGTHS))), "What is two"]
        # a seed each: of equal answers nothing tells which one the next turn follows
        asked = [*(params(count, seed=n) for n, count in enumerate(LENGTHS)), params(6, n=2)]
        begun = time.time()
        outputs = llm.generate(prompts, asked, use_tqdm=False)
        first = outputs[0]
        time.sleep(TOOL_S)
        turn = [*first.prompt_token_ids, *first.outputs[0].token_ids, 5, 6, 7]
        outputs += llm.generate([{"prompt_token_ids": turn}], [params(5)], use_tqdm=False)
        for each, asks in zip(outputs, [*prompts, first.request_id], strict=True):
            told.append(
                {
                    "id": each.request_id,
                    "asks": asks,
                    "prompt": len(each.prompt_token_ids or ()),
                    "tokens": [len(one.token_ids) for one in each.outputs],
                    "reasons": [one.finish_reason for one in each.outputs],
                    "metrics": asdict(each.metrics) if each.metrics else None,
                    "within": [begun, time.time()],
                }
            )
        llm.llm_engine.add_request("given up", "What is three", params(100))
        for _ in range(5):
            llm.llm_engine.step()
        llm.llm_engine.abort_request(["given up"])
        while llm.llm_engine.has_unfinished_requests():
            llm.llm_engine.step()
        print("done", flush=True)
    said = {"outputs": told, "wall_of_monotonic": time.time() - time.monotonic()}
    Path(folder, "llm.json").write_text(json.dumps(said))


if __name__ == "__main__":
    replica(*sys.argv[1:3]) if sys.argv[3:] else main(*sys.argv[1:])
