"""Steps of one real engine, each with our log of requests or without: logged_steps.py MODEL LAYERS SIDE,…

A step is 64 answers of uneven length, four to a prompt; a SIDE is `on` or any other word. The model has as
many layers as are asked for, with weights at random. Prints one line of JSON: of each step the seconds, and
the CPU seconds of the whole process.
"""

import json
import sys
import time

from vllm import LLM, SamplingParams
from vllm.v1.engine import output_processor

from rlprof_ops.trainers.vllm import adapter, finished_requests

ANSWERS, PROMPT, LONGEST = 64, 128, 128
HOOKED = ("add_request", "process_outputs", "abort_requests")


def main(model: str, layers: str, sides: str) -> None:
    engine = LLM(
        model=model,
        load_format="dummy",
        hf_overrides={"num_hidden_layers": int(layers), "layer_types": ["full_attention"] * int(layers)},
        dtype="float32",
        enforce_eager=True,
        max_model_len=512,
        max_num_seqs=ANSWERS,
        gpu_memory_utilization=0.1,  # of the machine's memory
    )
    of = output_processor.OutputProcessor
    bare = {name: getattr(of, name) for name in HOOKED}
    adapter.install(output_processor.__name__, output_processor)
    hooked = {name: getattr(of, name) for name in HOOKED}
    assert all(bare[name] is not hooked[name] for name in HOOKED)
    prompts = [
        {"prompt_token_ids": [n // 4 + 5, *(k % 50 + 5 for k in range(PROMPT - 1))]} for n in range(ANSWERS)
    ]
    asked = [
        SamplingParams(temperature=1.0, max_tokens=(n + 1) * LONGEST // ANSWERS, ignore_eos=True)
        for n in range(ANSWERS)
    ]

    def step(side: str) -> tuple[float, float]:
        for name, function in (hooked if side == "on" else bare).items():
            setattr(of, name, function)
        wall_s, cpu_s = time.perf_counter(), time.process_time()
        engine.generate(prompts, asked, use_tqdm=False)
        if side == "on":
            log = finished_requests._PROCESS.log
            assert log is not None
            log.flush()
        return time.perf_counter() - wall_s, time.process_time() - cpu_s

    for side in ("on", "off") * 2:  # warm
        step(side)
    print(json.dumps([step(side) for side in sides.split(",")]))


if __name__ == "__main__":
    main(*sys.argv[1:])
