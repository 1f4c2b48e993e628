"""How many parameters a model has, from its Hugging Face `config.json`.

The shapes are those of transformers' modules for the families below; any other `model_type` is refused, for a
wrong number is worse than none. Biases and norms count. Of a mixture of experts, a token meets those that it
is routed to, the shared one and the router.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from rlprof_ops.errors import UsageError
from rlprof_ops.host import foreign
from rlprof_ops.words import closest

FAMILIES = ("llama", "mistral", "mixtral", "qwen2", "qwen2_moe", "qwen3", "qwen3_moe")
_SCALES = {"k": 1e3, "m": 1e6, "b": 1e9, "t": 1e12}
_MOST_BYTES = 1 << 22
_LEAST, _MOST = 1e3, 1e14  # parameters
_MOST_LAYERS = 100_000


@dataclass(frozen=True)
class ModelSize:
    """`total` parameters; `met`: those that one token is multiplied with, so without the experts that it is
    not routed to and without the table of input embeddings (which counts where the output uses it too).
    """

    total: int
    met: int
    said_by: str


def told_parameters(text: str) -> ModelSize:
    """Of `--model-params`: "7e9", "7B", "500M" or "7241732096". Raises UsageError for anything else."""
    found = re.fullmatch(r"\s*(\d+(?:\.\d*)?(?:[eE]\+?\d+)?)\s*([kKmMbBtT])?\s*", text)
    count = float(found[1]) * _SCALES.get((found[2] or "").lower(), 1.0) if found else 0.0
    if not _LEAST <= count <= _MOST:
        raise UsageError(
            f"--model-params {text!r}: a number of parameters, such as 7e9, 7B or 500M, from 1e3 to 1e14"
        )
    return ModelSize(round(count), round(count), f"--model-params {text.strip()}")


def read_config(path: Path) -> ModelSize:
    """Of `--model-config`: a `config.json`, or the folder that holds one. Raises UsageError where it cannot
    be read or counted.
    """
    file = path / "config.json" if path.is_dir() else path
    try:
        config = foreign.read(file, _MOST_BYTES)
    except OSError as error:
        raise UsageError(f"--model-config {file}: cannot be read ({error.strerror})") from error
    except ValueError as error:
        raise UsageError(f"--model-config {file}: is no JSON ({error})") from error
    if not isinstance(config, dict):
        raise UsageError(f"--model-config {file}: is no JSON object")
    return count_parameters(config, f"--model-config {file}")


class _Config:
    """Whole numbers of a configuration, each with what stands where it is absent."""

    def __init__(self, said: dict[str, object], where: str) -> None:
        self.said, self.where = said, where

    def number(self, key: str, default: int | None = None, least: int = 1, most: int = 1 << 32) -> int:
        value = self.said.get(key)
        if value is None and default is not None:
            return default
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            raise UsageError(
                f"{self.where}: {key} is {value!r}, expected a whole number from {least} to {most:,}"
            )
        return value

    def flag(self, key: str, default: bool) -> int:
        value = self.said.get(key, default)
        if not isinstance(value, bool):
            raise UsageError(f"{self.where}: {key} is {value!r}, expected true or false")
        return int(value)


def count_parameters(said: dict[str, object], where: str = "config.json") -> ModelSize:
    """Raises `UsageError` for a family that is not known here, and for what is missing or wrong."""
    family = said.get("model_type")
    if family not in FAMILIES:
        near = closest(str(family), FAMILIES)
        hint = f"; the nearest is {near}" if near else ""
        raise UsageError(
            f"{where}: model_type {family!r} cannot be counted; known are {', '.join(FAMILIES)}{hint}."
            " Tell the number of parameters that a token meets with --model-params."
        )
    if isinstance(said.get("quantization_config"), dict):
        where += " (quantised: counted as the model that it stands for)"
    config = _Config(said, where)
    hidden, vocabulary = config.number("hidden_size"), config.number("vocab_size")
    layers = config.number("num_hidden_layers", most=_MOST_LAYERS)
    attention = _attention(config, family, hidden)
    total = met = hidden + layers * (attention + 2 * hidden)  # the last norm; two norms a layer
    for layer in range(layers):
        every, used = _mlp(config, family, hidden, layer)
        total, met = total + every, met + used
    table = vocabulary * hidden
    # mixtral and the like have an output of their own unless they say otherwise
    tied = config.flag("tie_word_embeddings", False)
    return ModelSize(total + (1 if tied else 2) * table, met + table, where)


def _attention(config: _Config, family: str, hidden: int) -> int:
    heads = config.number("num_attention_heads")
    groups = config.number("num_key_value_heads", heads if family in ("llama", "qwen2") else None)
    width = config.number("head_dim", 128 if family.startswith("qwen3") else max(hidden // heads, 1))
    query, key = heads * width, groups * width
    found = 2 * hidden * query + 2 * hidden * key
    if family in ("qwen2", "qwen2_moe"):
        biased = config.flag("qkv_bias", True) if family == "qwen2_moe" else 1
        return found + biased * (query + 2 * key)
    if family in ("mistral", "mixtral"):
        return found
    found += config.flag("attention_bias", False) * (query + 2 * key + hidden)
    return found + (2 * width if family.startswith("qwen3") else 0)  # norms of queries and keys


def _mlp(config: _Config, family: str, hidden: int, layer: int) -> tuple[int, int]:
    """All parameters of a layer's MLP, and those that one token meets."""
    dense = 3 * hidden * config.number("intermediate_size")
    if family == "llama":
        dense += config.flag("mlp_bias", False) * (2 * config.number("intermediate_size") + hidden)
    if family in ("llama", "mistral", "qwen2", "qwen3"):
        return dense, dense
    if family == "mixtral":
        experts, width = config.number("num_local_experts"), config.number("intermediate_size")
    else:
        experts = config.number("num_experts", least=0)
        width = config.number("moe_intermediate_size")
        only_dense = config.said.get("mlp_only_layers")
        sparse = (layer + 1) % config.number("decoder_sparse_step", 1) == 0
        if not experts or not sparse or (isinstance(only_dense, list) and layer in only_dense):
            return dense, dense
    chosen = min(config.number("num_experts_per_tok"), experts)
    router, one = hidden * experts, 3 * hidden * width
    shared = 0
    if family == "qwen2_moe":
        shared = 3 * hidden * config.number("shared_expert_intermediate_size") + hidden
    return router + experts * one + shared, router + chosen * one + shared
