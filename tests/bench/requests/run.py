"""What a recorded request costs the process that makes an engine's outputs, in pairs: hooks on, and off.

    python tests/bench/requests/run.py [--pairs 7] [--requests 20480] [--tokens 200] [--prompt 1000]

An engine with the interface of vLLM's OutputProcessor and no work of its own runs 256 requests at a time,
one token a pass. CPU time of the process, the writing thread included: a pass of 256 requests while none
waits for its first token, a pass while one does, and a request beside that.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[3] / "python"
AT_A_TIME = 256
ENGINE = """
import json, sys, time
from types import ModuleType, SimpleNamespace as Of

class OutputProcessor:
    def __init__(self):
        self.request_states = {}
    def add_request(self, request, prompt, parent_req=None, request_index=0, queue=None):
        self.request_states[request.request_id] = Of(
            external_req_id=request.external_req_id, prompt_len=len(prompt), prompt_token_ids=prompt,
            detokenizer=tokens, parent_req=None, stats=None)
    def process_outputs(self, engine_core_outputs, engine_core_timestamp=None, iteration_stats=None):
        for output in engine_core_outputs:
            if output.finish_reason is not None:
                self.request_states.pop(output.request_id)
        return engine_core_outputs
    def abort_requests(self, request_ids, internal):
        return []

side, count, length, prompt_length, at_a_time = sys.argv[1], *map(int, sys.argv[2:])
tokens = Of(num_output_tokens=lambda: length, output_token_ids=list(range(length)))
asked = [list(range(n, n + prompt_length)) for n in range(at_a_time)]
module = ModuleType("vllm.v1.engine.output_processor")
module.OutputProcessor = OutputProcessor
if side == "on":
    from rlprof_ops.trainers.vllm import adapter
    adapter.install(module.__name__, module)
engine = OutputProcessor()

def batch(names):
    for name, prompt in zip(names, asked):
        engine.add_request(Of(request_id=name, external_req_id=name, arrival_time=time.time()), prompt)
    running = [Of(request_id=name, finish_reason=None) for name in names]
    ended = [Of(request_id=name, finish_reason="length") for name in names]
    engine.process_outputs(running, time.monotonic())
    return running, ended

def spent(call, times):
    began = time.process_time()
    for _ in range(times):
        call()
    return time.process_time() - began

began = time.process_time()
passes = 0.0
for first in range(0, count, at_a_time):
    running, ended = batch([f"request-{n:08d}" for n in range(first, first + at_a_time)])
    passes += spent(lambda: engine.process_outputs(running, time.monotonic()), length)
    for n, one in enumerate(ended):  # each ends in a pass of its own, as uneven ones do
        engine.process_outputs([one, *running[n + 1 :]], time.monotonic())
if side == "on":
    from rlprof_ops.trainers.vllm import finished_requests
    finished_requests._PROCESS.log.flush()
whole = time.process_time() - began
rounds = -(-count // at_a_time)
engine.add_request(Of(request_id="waits", external_req_id="waits", arrival_time=time.time()), [])
waiting = spent(lambda: engine.process_outputs(running, time.monotonic()), 2000)
print(json.dumps({"pass_us": passes / (rounds * length) * 1e6, "waiting_us": waiting / 2000 * 1e6,
                  "request_us": (whole - passes) / count * 1e6}))
"""


def measure(side: str, arguments: argparse.Namespace) -> dict[str, float]:
    """Microseconds of a pass and of a request, on one side."""
    with tempfile.TemporaryDirectory() as folder:
        own = {name: text for name, text in os.environ.items() if not name.startswith("RLPROF_")}
        own |= {"RLPROF_NODE_DIR": folder, "PYTHONPATH": str(PACKAGE)}
        numbers = [
            str(number) for number in (arguments.requests, arguments.tokens, arguments.prompt, AT_A_TIME)
        ]
        done = subprocess.run(
            [sys.executable, "-c", ENGINE, side, *numbers],
            env=own,
            capture_output=True,
            text=True,
            check=True,
        )
        if side == "on":
            [path] = Path(folder, "requests").iterdir()
            assert len(path.read_text().splitlines()) == arguments.requests + 1
    found: dict[str, float] = json.loads(done.stdout)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--pairs", type=int, default=7)
    parser.add_argument("--requests", type=int, default=20_480)
    parser.add_argument("--tokens", type=int, default=200)
    parser.add_argument("--prompt", type=int, default=1000, help="tokens of a prompt")
    arguments = parser.parse_args()
    sides: dict[str, list[dict[str, float]]] = {"off": [], "on": []}
    for pair in range(arguments.pairs):
        for side in ("on", "off") if pair % 2 else ("off", "on"):
            sides[side].append(measure(side, arguments))
    print(f"{'CPU, microseconds':20} {'off':>8} {'on':>8} {'more':>8} {'on/off':>8}")
    for name in ("pass_us", "waiting_us", "request_us"):
        off, on = (statistics.median(each[name] for each in sides[side]) for side in ("off", "on"))
        print(f"{name:20} {off:8.2f} {on:8.2f} {on - off:8.2f} {on / off:8.2f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
