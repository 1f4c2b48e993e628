"""A process with a GPU that does what it is told on standard input: a line of JSON in, one out.

    {"do": "ready"}                       nothing: it has begun
    {"do": "graph"}                       a step is a CUDA graph from now on
    {"do": "steps", "steps": 20, "kernels": 200}   seconds of each step
    {"do": "child"}                       a spawned child does what follows, as vLLM's EngineCore does

Without a GPU it works on the CPU, and `graph` says false.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from typing import Any

import torch

from rlprof_ops.runtime.ranges.emitters import nvtx_ranges

SIZE = 64


class Work:
    """Small kernels, in a graph or one by one, with an NVTX range a step."""

    def __init__(self) -> None:
        self.device = "cuda" if torch.cuda.is_available() else "cpu"
        self.x = torch.randn(SIZE, SIZE, device=self.device)
        self.graph: Any = None
        self.captured = 0
        self.nvtx = nvtx_ranges()
        self.kernels(10)

    def kernels(self, count: int) -> None:
        for _ in range(count):
            self.x = torch.tanh(self.x)

    def do_graph(self, kernels: int = 200) -> dict[str, Any]:
        if self.device == "cpu":
            return {"graph": False}
        graph, still = torch.cuda.CUDAGraph(), self.x.clone()
        with torch.cuda.graph(graph):
            for _ in range(kernels):
                still = torch.tanh(still)
        self.graph, self.captured = graph, kernels
        return {"graph": True}

    def do_steps(self, steps: int, kernels: int = 200) -> dict[str, Any]:
        times = []
        for number in range(steps):
            began = time.perf_counter()
            token = self.nvtx.start(f"step {number}") if self.nvtx else None
            if self.graph is not None:
                for _ in range(max(1, kernels // self.captured)):
                    self.graph.replay()
            else:
                self.kernels(kernels)
            if self.device == "cuda":
                torch.cuda.synchronize()
            if self.nvtx:
                self.nvtx.end(token)
            times.append(time.perf_counter() - began)
        return {"times": times}


def main() -> None:
    work: Work | None = None
    child: subprocess.Popen[str] | None = None
    for line in sys.stdin:
        asked = json.loads(line)
        do = asked.pop("do")
        if do == "ready":
            answer: dict[str, Any] = {}
        elif do == "child":
            child = subprocess.Popen(
                [sys.executable, "-u", __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
            )
            answer = {"child": child.pid}
        elif child is not None and child.stdin is not None and child.stdout is not None:
            child.stdin.write(line)
            child.stdin.flush()
            answer = json.loads(child.stdout.readline())
        else:
            work = work or Work()
            answer = getattr(work, f"do_{do}")(**asked)
        print(json.dumps(answer), flush=True)
    if child is not None and child.stdin is not None:
        child.stdin.close()
        child.wait(60)


if __name__ == "__main__":
    main()
