"""A driver that asks a `vllm serve` for tokens, and profiles it by the server's own endpoints:
profiled_server.py MODEL FOLDER [WRAP ...]

WRAP stands before the server's command. Six steps: vLLM's profiler runs in the middle of step 2, and from
before step 4 until the end of its first request.
"""

import json
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

sys.path.append(str(Path(__file__).parent))

from node_clock import known

from rlprof_ops.runtime import profiler

START_S = 800
ANSWER_S = 300  # a profiler that starts or writes, on a loaded machine


def main(model: str, folder: str, *wrap: str) -> None:
    lead = profiler.from_env(worker="driver")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    options = ["--host", "127.0.0.1", "--port", str(port), "--dtype", "float32", "--enforce-eager"]
    options += ["--max-model-len", "64", "--max-num-seqs", "4", "--api-server-count", "1"]
    # Between requests a worker spins in Python: with stacks its trace needs minutes to be summed up.
    own = {"profiler": "torch", "torch_profiler_dir": folder, "torch_profiler_with_stack": False}
    vllm = str(Path(sys.executable).with_name("vllm"))
    command = [*wrap, sys.executable, "-P", vllm, "serve", model, *options]
    server = subprocess.Popen([*command, "--profiler-config", json.dumps(own)])

    def ask(path: str, **body: object) -> bytes:
        data = json.dumps(body).encode()
        headers = {"Content-Type": "application/json"}
        request = urllib.request.Request(f"http://127.0.0.1:{port}/{path}", data, headers, method="POST")
        with urllib.request.urlopen(request, timeout=ANSWER_S) as answer:
            said: bytes = answer.read()
        return said

    def generate() -> str:
        greedy = {"temperature": 0, "max_tokens": 4, "ignore_eos": True}
        answer = ask("v1/completions", model=model, prompt="What is one", **greedy)
        text: str = json.loads(answer)["choices"][0]["text"]
        return text

    try:
        serving(server, port)
        for step in range(1, 7):
            if step == 4:
                ask("start_profile")
            with lead.step(step):
                known(step)
                texts = [generate()]
                if step == 2:
                    ask("start_profile")
                    texts.append(generate())
                if step in (2, 4):
                    ask("stop_profile")
                texts.append(generate())
            print(f"tokens of step {step}: {texts}", flush=True)
    finally:
        server.send_signal(signal.SIGINT)
        try:
            server.wait(60)
        except subprocess.TimeoutExpired:
            server.kill()
            server.wait()
    lead.close()


def serving(server: subprocess.Popen[bytes], port: int) -> None:
    """Return once the server answers; raises RuntimeError when it ended or needs too long."""
    until = time.monotonic() + START_S
    while server.poll() is None and time.monotonic() < until:
        try:
            urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5).close()
        except (urllib.error.URLError, OSError):
            time.sleep(0.5)
        else:
            return
    raise RuntimeError(f"the server does not serve (exit code {server.poll()})")


if __name__ == "__main__":
    main(*sys.argv[1:])
