"""TRL's GRPOTrainer as its documentation shows it: grpo.py MODEL STEPS [KEY=VALUE of GRPOConfig ...]

A step's time is printed by a callback of the kind any user writes; nothing of TRL is changed.
"""

import json
import sys
import time

import torch
from datasets import Dataset
from transformers import AutoTokenizer, TrainerCallback
from trl import GRPOConfig, GRPOTrainer


def distinct_characters(completions: list, **_: object) -> list[float]:
    time.sleep(0.2)  # as a verifier of answers takes its time
    return [len(set(completion[0]["content"])) / 100.0 for completion in completions]


class StepTimes(TrainerCallback):
    def on_step_begin(self, args, state, control, **_):  # type: ignore[no-untyped-def]
        self.began = time.monotonic()

    def on_step_end(self, args, state, control, **_):  # type: ignore[no-untyped-def]
        print(f"step {state.global_step} took {time.monotonic() - self.began:.6f} s", flush=True)


def main(*callbacks: TrainerCallback) -> None:
    model, steps, *pairs = sys.argv[1:]
    extra = {key: json.loads(value) for key, value in (pair.split("=", 1) for pair in pairs)}
    torch.set_num_threads(1)
    prompts = Dataset.from_list(
        [{"prompt": [{"role": "user", "content": f"What is {i} plus {i + 1}?"}]} for i in range(64)]
    )
    settings = {
        "output_dir": "trl-out",
        "use_cpu": True,
        "bf16": False,
        "per_device_train_batch_size": 8,
        "num_generations": 4,
        "max_completion_length": 16,
        "max_steps": int(steps),
        "logging_steps": 1,
        "save_strategy": "no",
        "report_to": "none",
        "learning_rate": 1e-4,
        "gradient_checkpointing": False,
    }
    GRPOTrainer(
        model=model,
        reward_funcs=distinct_characters,
        args=GRPOConfig(**{**settings, **extra}),
        train_dataset=prompts,
        processing_class=AutoTokenizer.from_pretrained(model),
        callbacks=[StepTimes(), *callbacks],
    ).train()


if __name__ == "__main__":
    main()
