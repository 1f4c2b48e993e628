"""What is found in traces that mark no phase: real ones, held against the tables of the same report."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("msgspec")

from tests.analyze.as_data import answer_of
from tests.analyze.shared import real

from rlprof_ops.analyze.output.text import percent

Answer = dict[str, Any]
FULL_EXPORT = Path(__file__).parents[4] / "shared" / "data" / "h100_2gpu_1s.sqlite"


def read(path: Path) -> tuple[Answer, dict[str, Any]]:
    answer = answer_of(path, jobs=1, cache=False)
    return answer, {finding["kind"]: finding for finding in answer["findings"]}


def share_of(answer: Answer, *fields: str) -> str:
    """Of the step's window, all GPUs."""
    rows = [row["gpu"] | row["gpu_idle"] for row in answer["anatomy"]]
    return percent(sum(row[f] for row in rows for f in fields) / sum(row["window_ns"] for row in rows))


def test_an_export_of_copies_says_so_first() -> None:
    if not FULL_EXPORT.is_file():
        pytest.skip(f"no {FULL_EXPORT.name}: it is in no checkout")
    answer, kinds = read(FULL_EXPORT)
    first = answer["findings"][0]
    assert first["kind"] == "copies" and "97 % of h100_2gpu_1s's GPU time" in first["text"]
    assert "HtoD, 450 times, 47.5 GiB at 27.7 GB/s" in first["text"] and "pinned" in first["advice"]
    assert "busy 99 % of the time and compute for 2.3 %" in kinds["kernels"]["text"]


@pytest.mark.parametrize(
    ("name", "kind", "field"),
    [
        ("h100_2gpu_part.sqlite", "copies", "exposed_memcpy_ns"),
        ("h100_2gpu_part.sqlite", "synchronise", "synchronising_ns"),
        ("torch/nccl_training_part.json.gz", "host", "host_ns"),
        ("torch/sampled_rank-1.json.gz", "queued", "queued_ns"),
        ("torch/sampled_rank-1.json.gz", "communication", "exposed_communication_ns"),
        ("torch/mi300_qwen1.5_0.5b_part.json.gz", "kernels", "busy_ns"),
    ],
)
def test_a_share_in_words_is_that_of_the_table(name: str, kind: str, field: str) -> None:
    answer, kinds = read(real(name))
    assert share_of(answer, field) in kinds[kind]["text"] and kinds[kind]["advice"]


@pytest.mark.parametrize(
    ("name", "classes"),
    [
        ("torch/h100_qwen1.5_0.5b_part.json.gz", ["elementwise", "gemm", "attention"]),
        ("torch/vllm_prefill_decode_piecewise_part.json.gz", ["moe", "gemm", "attention"]),
    ],
)
def test_a_busy_trace_says_with_what(name: str, classes: list[str]) -> None:
    """Before, its only finding was that no report marks a phase."""
    answer, kinds = read(real(name))
    text, top = kinds["kernels"]["text"], answer["kernels"][0]
    whole = sum(row["total_ns"] for row in answer["kernel_classes"] if row["kernel_class"] != "copy")
    assert all(word in text for word in classes) and top["name"][:60] in text
    assert f"alone takes {percent(top['total_ns'] / whole)}, {top['count']} calls" in text
    order = [finding["kind"] for finding in answer["findings"]]  # what can be mended leads
    assert order == [*(k for k in order if k == "synchronise"), "kernels", "unexplained"]


def test_where_phases_tell_kernels_do_not_lead() -> None:
    _, kinds = read(real("torch/sglang_qwen3_8b_decode.json.gz"))
    assert "phase" in kinds and "kernels" not in kinds
