"""A driver with vLLM in it, three steps of short and long answers: counted_requests.py MODEL FOLDER

FOLDER gets `passes.json`: of every pass of the engine its step, when it was over, how many requests were
done, and the tokens of the longest answer.
"""

import json
import sys
import time
from pathlib import Path

from vllm import LLM, SamplingParams

from rlprof_ops.runtime import profiler

SHORT, LONG = [24] * 24, [450] * 6


def main(model: str, folder: str) -> None:
    lead = profiler.from_env(worker="driver")
    engine = LLM(
        model=model,
        dtype="float32",
        enforce_eager=True,
        max_model_len=512,
        max_num_seqs=64,
        gpu_memory_utilization=0.1,  # of the machine's memory
    ).llm_engine
    passes: list[tuple[int, int, int, int]] = []
    for step in (1, 2, 3):
        with lead.step(step), lead.range("generation"):
            for number, count in enumerate(SHORT if step == 3 else [*LONG, *SHORT]):
                params = SamplingParams(temperature=1.0, max_tokens=count, ignore_eos=True)
                engine.add_request(f"{step}-{number}", f"What is one plus {number}", params)
            done = longest = 0
            while engine.has_unfinished_requests():
                outputs = engine.step()
                done += sum(each.finished for each in outputs)
                longest = max(len(each.outputs[0].token_ids) for each in outputs) if outputs else longest
                passes.append((step, time.time_ns(), done, longest))
    Path(folder, "passes.json").write_text(json.dumps(passes))
    lead.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
