"""FLOPs of operators against what torch counts itself (`FlopCounterMode` shares no code), and their GPU time
against a walk over the events of a real trace.
"""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("msgspec")

from tests.analyze.as_data import answer_of
from tests.analyze.metrics.test_launching import WHOLE, events_of, span_of
from tests.analyze.shared import kernel, launch, write_trace, x

from rlprof_ops.analyze.operator_flops import COUNTED, work_of

HBM3 = [{"id": 0, "name": "NVIDIA H100 80GB HBM3"}]
TYPES = ["c10::BFloat16"] * 3


def traced(tmp_path: Path) -> tuple[list[dict[str, Any]], int]:
    """The operators of a real trace of torch on this CPU and the FLOPs that torch counted in them."""
    torch = pytest.importorskip("torch")
    from torch.nn.functional import scaled_dot_product_attention
    from torch.utils.flop_counter import FlopCounterMode, sdpa_backward_flop_count, sdpa_flop_count

    model = torch.nn.Sequential(
        torch.nn.Conv2d(3, 8, 3, stride=2, padding=1, dilation=2),
        torch.nn.ConvTranspose2d(8, 6, 2, stride=2, output_padding=1),
        torch.nn.Flatten(2),
        torch.nn.Linear(225, 32),
    )
    heads = [torch.randn(2, 4, 7, 16, requires_grad=True) for _ in range(3)]

    def work() -> None:
        model(torch.randn(2, 3, 16, 16)).sum().backward()
        scaled_dot_product_attention(*heads).sum().backward()
        torch.baddbmm(torch.randn(3, 2, 5), torch.randn(3, 2, 4), torch.randn(3, 4, 5))
        torch.randn(6, 2) @ torch.randn(2, 9)

    # what torch counts of other devices' attention
    mapping = {
        torch.ops.aten._scaled_dot_product_flash_attention_for_cpu: lambda *shapes, **_: sdpa_flop_count(
            *shapes[:3]
        ),
        torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward: lambda *shapes, **_: (
            sdpa_backward_flop_count(*shapes[:4])
        ),
    }
    counter = FlopCounterMode(display=False, custom_mapping=mapping)
    with counter:
        work()
    path = tmp_path / "cpu.json"
    with torch.profiler.profile(record_shapes=True) as profiler:
        work()
    profiler.export_chrome_trace(str(path))
    events = json.loads(path.read_text())["traceEvents"]
    return [e for e in events if e.get("cat") == "cpu_op"], counter.get_total_flops()


def test_flops_are_those_that_torch_counts(tmp_path: Path) -> None:
    """The trace of a CPU becomes one of a GPU: every operator that is counted launches one kernel of 1 µs."""
    ops, expected = traced(tmp_path)
    counted = [op for op in ops if op["name"] in COUNTED]
    assert {op["name"] for op in counted} >= {
        "aten::mm",
        "aten::addmm",
        "aten::baddbmm",
        "aten::convolution",
        "aten::convolution_backward",
        "aten::_scaled_dot_product_flash_attention_for_cpu",
        "aten::_scaled_dot_product_flash_attention_for_cpu_backward",
    }
    events = list(ops)
    for number, op in enumerate(counted, 1):
        call = launch(op["ts"] + op["dur"] / 2, number, 0.001) | {"pid": op["pid"], "tid": op["tid"]}
        events += [call, kernel("k", op["ts"] + number, 1.0, correlation=number)]
    answer = answer_of(write_trace(tmp_path / "t.json", events, deviceProperties=HBM3), jobs=1, cache=False)
    rows = answer["operators"]
    assert sum(row["count"] * row["flops"] for row in rows) == expected
    assert sum(row["total_ns"] for row in rows) == 1000 * len(counted)
    assert all(row["share"] is None and row["bound"] is None and row["dtype"] == "float" for row in rows)
    (product,) = (row for row in rows if row["inputs"] == "[6, 2] × [2, 9]")
    assert (product["flops"], product["size_bytes"]) == (2 * 6 * 2 * 9, 4 * (12 + 18 + 54))
    assert product["tflops"] == 0.0002 and product["gpu"] == HBM3[0]["name"]


@pytest.mark.parametrize("name", ["h100_qwen1.5_0.5b", "mi300_qwen1.5_0.5b", "b200_eager", "sampled_rank-0"])
def test_the_gpu_time_of_a_real_trace(name: str) -> None:
    """By hand: of each kernel the operators around its launch, the outermost of those that are counted."""
    path = WHOLE / f"{name}.json.gz"
    if not path.is_file():
        pytest.skip(f"no {path.name}: it is in no checkout")
    events = events_of(path)
    calls: dict[int, tuple[Any, int]] = {}
    ops: dict[Any, list[tuple[int, int, dict[str, Any]]]] = defaultdict(list)
    for event in events:
        if str(event.get("cat")).endswith(("_runtime", "_driver")):
            calls[event["args"].get("correlation")] = (event["pid"], event["tid"]), span_of(event)[0]
        elif event.get("cat") == "cpu_op" and event["name"] in COUNTED:
            ops[event["pid"], event["tid"]].append((*span_of(event), event))
    expected: dict[tuple[str, str], int] = defaultdict(int)
    for event in events:
        called = calls.get((event.get("args") or {}).get("correlation"))
        if event.get("cat") not in ("kernel", "gpu_memcpy", "gpu_memset") or called is None:
            continue
        around = [(b, -e, op["ts"], op) for b, e, op in ops[called[0]] if b <= called[1] < e]
        if around:
            op = min(around, key=lambda found: found[:3])[3]
            first = op["name"] in ("aten::addmm", "aten::baddbmm")
            start, end = span_of(event)
            inputs = " × ".join(str([int(n) for n in side]) for side in op["args"]["Input Dims"][first:][:2])
            expected[op["name"], inputs] += end - start
    found: dict[tuple[str, str], int] = defaultdict(int)
    for row in answer_of(path, jobs=1, cache=False)["operators"]:
        found[row["name"], row["inputs"].removesuffix(" causal")] += row["total_ns"]
        assert row["share"] is None or 0 < row["share"] < 1
        reached = row["flops"] * row["count"] / row["total_ns"] / 1e3
        assert row["tflops"] == pytest.approx(reached, abs=1e-4)
    assert len(found) > 3 and dict(found) == dict(expected)


def shape(dims: list[list[int]], types: list[str], *said: str) -> tuple[str, str, str]:
    return json.dumps(dims), json.dumps(types), json.dumps(said)


def test_a_causal_mask_halves_attention_and_counts_only_where_its_begin_is_known() -> None:
    name, q, k = "aten::_scaled_dot_product_flash_attention", [2, 4, 64, 8], [2, 4, 16, 8]
    full = work_of(name, shape([q, q, q], TYPES, "", "", "", "0.", "False"))
    half = work_of(name, shape([q, q, q], TYPES, "", "", "", "0.", "True"))
    assert full and half and full.flops == 2 * half.flops == 2 * 2 * 2 * 4 * 64 * 64 * 8
    assert half.inputs == "[2, 4, 64, 8] × [2, 4, 64, 8] causal"
    assert full.size_bytes == 4 * 2 * (2 * 4 * 64 * 8)
    assert work_of(name, shape([q, k, k], TYPES, "", "", "", "0.", "True")) is None
    assert work_of(name, shape([q, q, q], TYPES)) is None  # an older torch does not say


def test_a_layer_is_bound_by_compute_and_a_token_by_memory(tmp_path: Path) -> None:
    events = []
    for number, rows in enumerate((8192, 1), 1):
        at = 1000.0 * number
        args = {"Input Dims": [[rows, 4096], [4096, 4096]], "Input type": TYPES[:2]}
        events += [x("cpu_op", "aten::linear", at - 1, 30.0, **args)]
        events += [x("cpu_op", "aten::mm", at, 20.0, **args)]
        events += [launch(at + 5, number), launch(at + 10, 10 + number), launch(at + 25, 20 + number)]
        events += [kernel("k", at + 50, 300.0, correlation=number)]
        events += [kernel("r", at + 360, 100.0, correlation=10 + number)]
        events += [kernel("of nobody", at + 470, 100.0, correlation=20 + number)]
    path = write_trace(tmp_path / "t.json", events, deviceProperties=HBM3)
    layer, token = sorted(answer_of(path, jobs=1, cache=False)["operators"], key=lambda row: -row["flops"])
    assert (layer["count"], layer["total_ns"], layer["flops"]) == (1, 400_000, 2 * 8192 * 4096 * 4096)
    assert layer["tflops"] == pytest.approx(687.19, abs=0.01)
    assert (layer["peak_tflops"], layer["bound"], layer["roof_tflops"]) == (989.4, "compute", 989.4)
    assert layer["share"] == pytest.approx(0.6946, abs=1e-4)
    moved = 2 * (4096 + 4096 * 4096 + 4096)
    assert (token["bound"], token["size_bytes"]) == ("memory", moved)
    assert token["roof_tflops"] == pytest.approx(3.35 * 2 * 4096 * 4096 / moved, abs=0.01)
    unnamed = answer_of(write_trace(tmp_path / "u.json", events), jobs=1, cache=False)["operators"]
    assert all(row["tflops"] > 0 and row["gpu"] == "" for row in unnamed)
    assert all(row["share"] is row["bound"] is row["roof_tflops"] is None for row in unnamed)


@pytest.mark.parametrize(
    "told",
    [
        ("null", "null", "null"),
        ("[]", "[]", "[]"),
        ("{}", "1", '"a"'),
        ("[[2, 3], [4, 5]]", '["float", "float"]', "[]"),
        ('[[2, "3"], ["3", 5]]', '["float", "float"]', "[]"),
        ("[[[2, 3]], [[3, 4]]]", '["float", "float"]', "[]"),
        ("[[0, 3], [3, 4]]", '["float", "float"]', "[]"),
        ("[" * 5000 + "]" * 5000, "[]", "[]"),
        ("[[1e400, 2], [2, 3]]", '["float", "float"]', "[]"),
        ("[[3], [1e400, 2], [2, 3]]", '["float", "float", "float"]', "[]"),
    ],
)
@pytest.mark.parametrize("name", sorted(COUNTED))
def test_what_does_not_tell_gives_no_number(name: str, told: tuple[str, str, str]) -> None:
    assert work_of(name, told) is None
