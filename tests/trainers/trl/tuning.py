"""Tuning as TRL's documentation shows it: tuning.py MODEL STEPS KIND, which is sft, dpo, precomputed
(DPO whose reference is computed before it trains) or bare (a Trainer of
transformers alone, whose micro-batches and data say how long they took).
"""

import sys
import time

import torch
from datasets import Dataset
from grpo import StepTimes
from transformers import AutoModelForCausalLM, AutoTokenizer, Trainer, TrainingArguments
from trl import DPOConfig, DPOTrainer, SFTConfig, SFTTrainer

SETTINGS = {
    "output_dir": "trl-out",
    "use_cpu": True,
    "bf16": False,
    "per_device_train_batch_size": 2,
    "gradient_accumulation_steps": 2,
    "logging_steps": 1,
    "save_strategy": "no",
    "report_to": "none",
    "gradient_checkpointing": False,
}


class SlowText(torch.utils.data.Dataset):
    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        time.sleep(0.03)
        words = torch.arange(16) + index % 8
        return {"input_ids": words, "labels": words, "attention_mask": torch.ones_like(words)}


class Bare(Trainer):
    def training_step(self, *args, **kwargs):  # type: ignore[no-untyped-def]
        began = time.monotonic()
        loss = super().training_step(*args, **kwargs)
        print(f"micro-batch of step {self.state.global_step + 1} {time.monotonic() - began:.6f}", flush=True)
        return loss


def main(model: str, steps: str, kind: str) -> None:
    torch.set_num_threads(1)
    tokenizer = AutoTokenizer.from_pretrained(model)
    settings = {**SETTINGS, "max_steps": int(steps)}
    if kind == "bare":
        net = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
        arguments = TrainingArguments(**settings)
        Bare(model=net, args=arguments, train_dataset=SlowText(), callbacks=[StepTimes()]).train()
        return
    texts = [f"What is {i} plus {i + 1}?" for i in range(64)]
    if kind == "sft":
        data = Dataset.from_list([{"text": text} for text in texts])
        trainer, config = SFTTrainer, SFTConfig
    else:
        data = Dataset.from_list([{"prompt": t, "chosen": " It is odd.", "rejected": " No."} for t in texts])
        trainer, config = DPOTrainer, DPOConfig
        settings["precompute_ref_log_probs"] = kind == "precomputed"
    trainer(
        model=model,
        args=config(**settings),
        train_dataset=data,
        processing_class=tokenizer,
        callbacks=[StepTimes()],
    ).train()


if __name__ == "__main__":
    main(*sys.argv[1:])
