"""What a recorded request costs the process that makes an engine's outputs, in pairs: hooks on, and off.

An engine with the interface of vLLM's OutputProcessor and no work of its own runs 256 requests at a time,
one token a pass; --prompt is the number of tokens of a prompt. CPU time of the process, the writing thread
included: a pass of 256 requests while none waits for its first token, a pass while one does, and a request
beside that.

--vllm is another measurement: steps of a real vLLM on this machine's CPU, with --layers of the tests' model
(tests/trainers/environments.py). Steps with the hooks and without take turns in one process, each turn with
two without: their ratio says how far one can be trusted here.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from statistics import median

from tests.bench.harness import Run, by_turns, environment, ratio, spend
from tests.trainers import environments

QUICK = {"pairs": 1, "requests": 512, "tokens": 20, "prompt": 50}
AT_A_TIME = 256
ALONE = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_NO_USAGE_STATS": "1",
    "HF_HUB_OFFLINE": "1",
    "OMP_NUM_THREADS": "1",
}
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


def measure(side: str, requests: int, tokens: int, prompt: int) -> dict[str, float]:
    """Microseconds of a pass and of a request, on one side."""
    with tempfile.TemporaryDirectory() as folder:
        numbers = [str(number) for number in (requests, tokens, prompt, AT_A_TIME)]
        env = environment({"RLPROF_NODE_DIR": folder})
        said = spend([sys.executable, "-c", ENGINE, side, *numbers], env).output
        if side == "on":
            [path] = Path(folder, "requests").iterdir()
            assert len(path.read_text().splitlines()) == requests + 1
    return json.loads(said.splitlines()[-1])


def bench(
    run: Run,
    *,
    pairs: int = 7,
    requests: int = 20_480,
    tokens: int = 200,
    prompt: int = 1000,
    vllm: bool = False,
    turns: int = 40,
    layers: int = 2,
) -> None:
    if vllm:
        real_steps(run, turns, layers)
        return
    sides = {side: lambda side=side: measure(side, requests, tokens, prompt) for side in ("off", "on")}
    found = by_turns(sides, pairs)
    run.head("CPU, microseconds", "off     ", "on      ", "more    ", "on / off, its quartiles")
    for name in ("pass_us", "waiting_us", "request_us"):
        off, on = ([each[name] for each in found[side]] for side in ("off", "on"))
        numbers = (median(off), median(on), median(on) - median(off))
        run.row(name, *(f"{number:.2f}" for number in numbers), ratio(on, off)[1])


def real_steps(run: Run, turns: int, layers: int) -> None:
    """The same steps of one engine with the log and without."""
    installed = environments.ensure("verl")
    order: list[str] = []
    by_turns({side: lambda side=side: order.append(side) for side in ("off", "on", "off again")}, turns)
    script = environments.HERE / "vllm_cpu" / "logged_steps.py"
    argv = [installed.python, "-P", script, installed.data / "model", str(layers), ",".join(order)]
    with tempfile.TemporaryDirectory() as folder:
        said = spend(argv, environment({**ALONE, "RLPROF_NODE_DIR": folder})).output
        [path] = Path(folder, "requests").iterdir()
        written = len(path.read_text().splitlines()) - 1
    steps = list(zip(order, json.loads(said.splitlines()[-1]), strict=True))
    run.say(f"{turns} turns, {written} requests written")
    run.head(
        "of a step             ", "off, s", "on, s ", "on / off, its quartiles", "off / off, its quartiles"
    )
    for number, name in enumerate(("time", "CPU, all threads")):
        off, on, again = (
            [times[number] for each, times in steps if each == side] for side in ("off", "on", "off again")
        )
        run.row(name, f"{median(off):.4f}", f"{median(on):.4f}", ratio(on, off)[1], ratio(again, off)[1])
        # What disturbs a step makes it longer: the least of each side has the least of that in it.
        least = [min(each) for each in (off, on, again)]
        ratios = (f"{each / least[0]:.3f}" for each in least[1:])
        run.row(f"least {name}", *(f"{each:.4f}" for each in least[:2]), *ratios)
