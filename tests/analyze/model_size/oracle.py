"""Writes tests/analyze/expected/parameter_counts.json: how many parameters transformers' own modules have,
and how many FLOPs torch counts when one token passes through them.

    <python with transformers and torch> tests/analyze/model_size/oracle.py
"""

from __future__ import annotations

import json
from importlib.metadata import version
from pathlib import Path
from typing import Any

SMALL = {
    "hidden_size": 64, "intermediate_size": 160, "num_hidden_layers": 3, "vocab_size": 337,
    "num_attention_heads": 4, "num_key_value_heads": 2,
}  # fmt: skip
EXPERTS = SMALL | {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 48}
# shapes as the models' own config.json has them; small ones so that a token can really pass
MODELS: dict[str, dict[str, Any]] = {
    "llama-2-7b": {
        "model_type": "llama",
        "hidden_size": 4096,
        "intermediate_size": 11008,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 32,
        "vocab_size": 32000,
    },
    "llama-3-8b": {
        "model_type": "llama",
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "vocab_size": 128256,
    },
    "llama-3.2-1b": {
        "model_type": "llama",
        "hidden_size": 2048,
        "intermediate_size": 8192,
        "num_hidden_layers": 16,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "head_dim": 64,
        "vocab_size": 128256,
        "tie_word_embeddings": True,
    },
    "mistral-7b": {
        "model_type": "mistral",
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "vocab_size": 32000,
    },
    "mixtral-8x7b": {
        "model_type": "mixtral",
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "vocab_size": 32000,
        "num_local_experts": 8,
        "num_experts_per_tok": 2,
    },
    "qwen2.5-0.5b": {
        "model_type": "qwen2",
        "hidden_size": 896,
        "intermediate_size": 4864,
        "num_hidden_layers": 24,
        "num_attention_heads": 14,
        "num_key_value_heads": 2,
        "vocab_size": 151936,
        "tie_word_embeddings": True,
    },
    "qwen2.5-7b": {
        "model_type": "qwen2",
        "hidden_size": 3584,
        "intermediate_size": 18944,
        "num_hidden_layers": 28,
        "num_attention_heads": 28,
        "num_key_value_heads": 4,
        "vocab_size": 152064,
    },
    "qwen1.5-moe-a2.7b": {
        "model_type": "qwen2_moe",
        "hidden_size": 2048,
        "intermediate_size": 5632,
        "num_hidden_layers": 24,
        "num_attention_heads": 16,
        "num_key_value_heads": 16,
        "vocab_size": 151936,
        "num_experts": 60,
        "num_experts_per_tok": 4,
        "moe_intermediate_size": 1408,
        "shared_expert_intermediate_size": 5632,
    },
    "qwen3-8b": {
        "model_type": "qwen3",
        "hidden_size": 4096,
        "intermediate_size": 12288,
        "num_hidden_layers": 36,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "vocab_size": 151936,
    },
    "qwen3-30b-a3b": {
        "model_type": "qwen3_moe",
        "hidden_size": 2048,
        "intermediate_size": 6144,
        "num_hidden_layers": 48,
        "num_attention_heads": 32,
        "num_key_value_heads": 4,
        "head_dim": 128,
        "vocab_size": 151936,
        "num_experts": 128,
        "num_experts_per_tok": 8,
        "moe_intermediate_size": 768,
    },
    "small llama": {"model_type": "llama", **SMALL},
    "small llama with biases": {"model_type": "llama", "attention_bias": True, "mlp_bias": True, **SMALL},
    "small llama, tied": {"model_type": "llama", "tie_word_embeddings": True, **SMALL},
    "small mistral": {"model_type": "mistral", **SMALL},
    "small mixtral": {"model_type": "mixtral", "num_local_experts": 8, "num_experts_per_tok": 2, **SMALL},
    "small qwen2": {"model_type": "qwen2", **SMALL},
    "small qwen2_moe": {"model_type": "qwen2_moe", "shared_expert_intermediate_size": 96, **EXPERTS},
    "small qwen2_moe, one layer dense": {
        "model_type": "qwen2_moe",
        "shared_expert_intermediate_size": 96,
        "mlp_only_layers": [1],
        "qkv_bias": False,
        **EXPERTS,
    },
    "small qwen3": {"model_type": "qwen3", "head_dim": 32, **SMALL},
    "small qwen3_moe, every other layer": {
        "model_type": "qwen3_moe",
        "head_dim": 32,
        "decoder_sparse_step": 2,
        **EXPERTS,
    },
}


def counted(config: dict[str, Any]) -> dict[str, Any]:
    """Parameters of the model on the meta device; of a small one the FLOPs of one token's forward pass, less
    those of attention itself, which has no parameters.
    """
    import torch
    from torch.utils.flop_counter import FlopCounterMode
    from transformers import AutoConfig, AutoModelForCausalLM

    said = {key: value for key, value in config.items() if key != "model_type"}
    made = AutoConfig.for_model(config["model_type"], **said)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(made)
    found = {"config": config, "total": sum(p.numel() for p in model.parameters())}
    if config["hidden_size"] == SMALL["hidden_size"]:
        made._attn_implementation = "eager"
        made._experts_implementation = "eager"
        model = AutoModelForCausalLM.from_config(made).eval()
        with FlopCounterMode(display=False) as counter, torch.no_grad():
            model(torch.tensor([[1]]))
        width = getattr(made, "head_dim", None) or made.hidden_size // made.num_attention_heads
        attention = 4 * made.num_attention_heads * width * made.num_hidden_layers
        found["flops"] = counter.get_total_flops() - attention
        found["vectors"] = sum(p.numel() for p in model.parameters() if p.dim() == 1)  # norms, biases
    return found


if __name__ == "__main__":
    counts = {name: counted(config) for name, config in MODELS.items()}
    versions = {name: version(name) for name in ("transformers", "torch")}
    place = Path(__file__).parents[1] / "expected" / "parameter_counts.json"
    place.write_text(json.dumps({"made_with": versions, "models": counts}, indent=1) + "\n")
