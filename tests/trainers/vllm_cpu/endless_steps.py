"""A driver that asks a `vllm serve` for tokens in every step, until it is killed with its server:
endless_steps.py MODEL
"""

from __future__ import annotations

import itertools
import socket
import subprocess
import sys
import time
from pathlib import Path

sys.path.append(str(Path(__file__).parent))

from uneven_requests import answered, ask

from rlprof_ops.runtime import profiler


def main(model: str) -> None:
    lead = profiler.from_env(worker="driver")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    options = ["--host", "127.0.0.1", "--port", str(port), "--dtype", "float32", "--enforce-eager"]
    options += ["--max-model-len", "128", "--max-num-seqs", "4", "--api-server-count", "1"]
    vllm = str(Path(sys.executable).with_name("vllm"))
    server = subprocess.Popen([sys.executable, "-P", vllm, "serve", model, *options])
    until = time.monotonic() + 500
    while not answered(f"http://127.0.0.1:{port}/health"):
        assert server.poll() is None and time.monotonic() < until
        time.sleep(0.5)
    for step in itertools.count(1):
        with lead.step(step):
            with lead.range("generation"):
                ask(port, model, 0)
            with lead.range("train"):
                time.sleep(0.5)


if __name__ == "__main__":
    main(sys.argv[1])
