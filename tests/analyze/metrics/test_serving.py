"""Prefill and decode apart: on traces whose passes are known, and on real ones of vLLM and SGLang."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("numpy")
pytest.importorskip("msgspec")

from tests.analyze.as_data import answer_of
from tests.analyze.shared import kernel, launch, mark, real, write_trace

from rlprof_ops.analyze.metrics.gpu_work.serving import Pass, serving_totals, told
from rlprof_ops.analyze.readers import read_report


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("execute_context_2(512)_generation_30(30)", Pass("mixed", 30, 512)),
        ("execute_context_2(512)_generation_0(0)", Pass("prefill", 0, 512)),
        ("execute_context_0(0)_generation_30(30)", Pass("decode", 30, 0)),
        ("execute_context_0(0)_generation_0(0)", None),
        # as real traces of AMD's vLLM and of a B200 have them
        (
            "execute_8192_context_9(sq8155sk8430sqsq7475785sqsk7671310)_generation_37(sq37sk34489sqsq37sqsk34489)",
            Pass("mixed", 37, 8155),
        ),
        ("execute_context_1(888_788544)_generation_0(0)", Pass("prefill", 0, 888)),
        ("step[DECODE bs=32]", Pass("decode", 32, 0)),
        ("step[EXTEND bs=4 toks=900]", Pass("prefill", 0, 900)),
        ("step[IDLE bs=0]", None),
        ("step 3", None),
        ("generation", None),
    ],
)
def test_names_of_passes(name: str, said: Pass | None) -> None:
    assert told(name) == said


def test_a_real_trace_names_its_pass() -> None:
    """32 requests: the number is in the range's own name."""
    read = read_report(real("torch/sglang_qwen3_8b_decode.json.gz"), cache=False)
    (row,) = serving_totals(read, ())
    assert (row.kind, row.told_by, row.count, row.decoding, row.prefilled) == ("decode", "passes", 1, 32, 0)
    assert 0 < row.total_ns <= int(read.gpu.duration.sum())


def engine(folder: Path, named: bool) -> Path:
    """A step of 100 ms: a prefill of 20 ms for 8 prompts, then passes of 10 ms that decode 8, 6, 4, 2."""
    events = [mark("step 3", 0, 100_000), mark("generation", 1_000, 90_000)]
    passes = [("prefill", 1_000, 20_000, 8)]
    passes += [("decode", 30_000 + 12_000 * i, 10_000, 8 - 2 * i) for i in range(4)]
    for number, (kind, start, length, requests) in enumerate(passes, 1):
        name = f"execute_context_{requests}(4096)_generation_0(0)"
        if kind == "decode":
            name = f"execute_context_0(0)_generation_{requests}({requests})"
        if named:
            events.append(mark(name, start, length))
        graph = "cudaGraphLaunch" if kind == "decode" else "cudaLaunchKernel"
        events.append(launch(start + 10, number, name=graph))
        attention = f"flashinfer::Batch{kind.title()}WithPagedKVCacheKernel<...>"
        # the GPU runs behind the host: the work ends after its pass
        events.append(kernel(attention, start + 4_000, length * 0.6, correlation=number))
        events.append(kernel("nvjet_gemm", start + 4_000 + length * 0.6, length * 0.3, correlation=number))
    return write_trace(folder / "vllm_worker_rank0_step3-3_n0_7.pt.trace.json", events)


def test_passes_tell_kinds_and_the_batch(tmp_path: Path) -> None:
    answer = answer_of(engine(tmp_path, named=True), jobs=1, cache=False)
    prefill, decode = sorted(answer["serving"], key=lambda row: row["total_ns"])
    if prefill["kind"] != "prefill":
        prefill, decode = decode, prefill
    assert (prefill["phase"], prefill["total_ns"], prefill["prompt_tokens"]) == (
        "generation",
        18_000_000,
        4096,
    )
    assert (decode["total_ns"], decode["count"], decode["batch_mean"]) == (36_000_000, 4, 5.0)
    assert [prefill["share"], decode["share"]] == pytest.approx([1 / 3, 2 / 3], abs=1e-5)
    assert (decode["batch"][0], decode["batch"][-1], len(decode["batch"])) == (8, 2, 40)
    assert prefill["batch"] == [] and prefill["batch_mean"] is None


def test_kernels_and_graphs_tell_what_they_can(tmp_path: Path) -> None:
    rows = answer_of(engine(tmp_path, named=False), jobs=1, cache=False)["serving"]
    found = {(row["kind"], row["told_by"]): (row["count"], row["total_ns"]) for row in rows}
    assert found == {
        ("prefill", "attention kernels"): (1, 12_000_000),
        ("decode", "attention kernels"): (4, 24_000_000),
        ("CUDA graphs", "launches"): (4, 36_000_000),
    }


def test_training_tells_nothing_of_it() -> None:
    assert serving_totals(read_report(real("torch/nccl_training_part.json.gz"), cache=False), ()) == ()
