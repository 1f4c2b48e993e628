"""A rollout worker by a user who profiles vLLM by vLLM's own start_profile: profiled_llm.py MODEL FOLDER

Six steps, each marked for rlprof: vLLM's profiler runs in the middle of step 2, and from before step 4 until
the end of what step 4 generates.
"""

import sys
from pathlib import Path

from vllm import LLM, SamplingParams

sys.path.append(str(Path(__file__).parent))

from node_clock import known

from rlprof_ops.runtime import profiler


def main(model: str, folder: str) -> None:
    rank0 = profiler.from_env(worker="rollout", rank=0)
    engine = LLM(
        model=model,
        dtype="float32",
        enforce_eager=True,
        max_model_len=64,
        max_num_seqs=4,
        profiler_config={
            "profiler": "torch",
            "torch_profiler_dir": folder,
            # Between requests a worker spins in Python: its stacks need minutes to be summed up.
            "torch_profiler_with_stack": False,
        },
    )
    greedy = SamplingParams(temperature=0.0, max_tokens=4, ignore_eos=True)

    def generate() -> list[list[int]]:
        # one prompt: an engine in another process may take two in one pass or in two
        [done] = engine.generate(["What is one"], greedy, use_tqdm=False)
        return [list(done.outputs[0].token_ids)]

    for step in range(1, 7):
        if step == 4:
            engine.start_profile()
        with rank0.step(step):
            known(step)
            tokens = generate()
            if step == 2:
                engine.start_profile()
                tokens += generate()
            if step in (2, 4):
                engine.stop_profile()
            tokens += generate()
        print(f"tokens of step {step}: {tokens}", flush=True)
    rank0.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
