"""Parameters against transformers' own modules, and FLOPs against what torch counts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rlprof_ops.analyze.gpu_peaks import PEAKS, gpu_peak
from rlprof_ops.analyze.model_size.parameters import count_parameters, read_config, told_parameters
from rlprof_ops.errors import UsageError

EXPECTED = json.loads((Path(__file__).parents[1] / "expected" / "parameter_counts.json").read_text())
MODELS: dict[str, dict[str, Any]] = EXPECTED["models"]


@pytest.mark.parametrize("name", MODELS)
def test_parameters_are_those_of_transformers(name: str) -> None:
    found = count_parameters(MODELS[name]["config"])
    assert found.total == MODELS[name]["total"]
    assert 0 < found.met <= found.total


@pytest.mark.parametrize("name", [name for name, model in MODELS.items() if "flops" in model])
def test_a_token_meets_what_torch_counts_flops_for(name: str) -> None:
    """Two FLOPs a parameter of every matrix that one token passes through; norms and biases are none."""
    model = MODELS[name]
    assert 2 * (count_parameters(model["config"]).met - model["vectors"]) == model["flops"]


def test_a_config_is_read_from_its_file_and_folder(tmp_path: Path) -> None:
    model = MODELS["qwen3-8b"]
    (tmp_path / "config.json").write_text(json.dumps(model["config"] | {"unknown": [1]}))
    assert read_config(tmp_path).total == read_config(tmp_path / "config.json").total == model["total"]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"model_type": "qwen4"}, "model_type 'qwen4' cannot be counted; known are llama, mistral"),
        ({"model_type": None}, "model_type None cannot be counted"),
        ({"hidden_size": "4096"}, "hidden_size is '4096', expected a whole number from 1 to"),
        ({"num_hidden_layers": None}, "num_hidden_layers is None"),
        (
            {"num_hidden_layers": 10**12},
            "num_hidden_layers is 1000000000000, expected a whole number from 1 to",
        ),
        ({"tie_word_embeddings": 1}, "tie_word_embeddings is 1, expected true or false"),
        ({"num_attention_heads": 0}, "num_attention_heads is 0"),
    ],
)
def test_what_cannot_be_counted_is_refused(tmp_path: Path, change: dict[str, Any], said: str) -> None:
    (tmp_path / "config.json").write_text(json.dumps(MODELS["llama-2-7b"]["config"] | change))
    with pytest.raises(UsageError) as refused:
        read_config(tmp_path)
    assert said in str(refused.value) and str(tmp_path) in str(refused.value)


def test_files_that_are_no_config_are_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot be read"):
        read_config(tmp_path / "none.json")
    for text, said in (("{", "is no JSON"), ("[1]", "is no JSON object"), ("[" * 99_999, "is no JSON")):
        (tmp_path / "config.json").write_text(text)
        with pytest.raises(UsageError, match=said):
            read_config(tmp_path)


@pytest.mark.parametrize(
    ("text", "count"), [("7e9", 7e9), ("7B", 7e9), ("1.5b", 1.5e9), ("500M", 5e8), ("7241732096", 7241732096)]
)
def test_told_parameters(text: str, count: float) -> None:
    assert told_parameters(text).met == count


@pytest.mark.parametrize("text", ["", "seven", "7X", "-7e9", "1", "nan", "1e99"])
def test_what_is_no_number_of_parameters(text: str) -> None:
    with pytest.raises(UsageError, match="a number of parameters, such as 7e9"):
        told_parameters(text)


@pytest.mark.parametrize(
    ("name", "peak"),
    [
        ("NVIDIA H100 80GB HBM3", 989.4),
        ("NVIDIA H100 PCIe", 756.5),
        ("NVIDIA H100 NVL", 835.5),
        ("NVIDIA H200", 989.4),
        ("NVIDIA H20", 148.0),
        ("NVIDIA B200", 2250.0),
        ("NVIDIA GB200", 2500.0),
        ("NVIDIA GH200 480GB", 989.4),
        ("NVIDIA A100-SXM4-80GB", 312.0),
        ("NVIDIA L4", 121.0),
        ("NVIDIA L40S", 362.05),
        ("AMD Instinct MI300X", 1307.4),
        ("Tesla V100-SXM2-16GB", None),
        ("NVIDIA GeForce RTX 4090", None),
        ("", None),
    ],
)
def test_peaks_by_name(name: str, peak: float | None) -> None:
    found = gpu_peak(name)
    assert (found and found.tflops) == peak


def test_every_peak_has_a_source() -> None:
    assert all(tflops > 0 and memory > 0 and source for _, tflops, memory, source in PEAKS)
