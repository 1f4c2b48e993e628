"""The GPUs' own counters by phase and kind of kernel: exports whose samples are known, and an oracle that
adds them up sample by sample.
"""

from __future__ import annotations

import random
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

np = pytest.importorskip("numpy")
pytest.importorskip("msgspec")

from tests.analyze.as_data import answer_of, report  # noqa: E402
from tests.analyze.nsys_exports import METRICS, MS, Process, Work, add_metrics, two_phases, write_export  # noqa: E402

from rlprof_ops.analyze.columns import MetricSamples  # noqa: E402
from rlprof_ops.analyze.metrics.gpu_work import counters  # noqa: E402
from rlprof_ops.analyze.readers import read_report  # noqa: E402
from rlprof_ops.analyze.readers.nsys_metrics import kept_name  # noqa: E402

FIRST, SECOND_GPU = "GPU-aaaa-1", "GPU-bbbb-2"


def sampled(levels: tuple[int, int], every: int = MS) -> list[tuple[int, dict[str, int]]]:
    """SM active at one level for 20 ms and at another for the next 20; the other metrics stay the same."""
    rows = []
    for time in range(0, 40 * MS + 1, every):
        values = dict.fromkeys(METRICS, 10) | {
            "SMs Active [Throughput %]": levels[0] if time <= 20 * MS else levels[1],
            "NVLink RX Requests User Data [Throughput %]": 20,
            "GPC Clock Frequency [MHz]": 1_980_000_000,
        }
        rows.append((time, values))
    return rows


def shares(answer: Any, worker: str) -> dict[tuple[str, str], float]:
    return {
        (row["phase"], row["metric"]): row["share"]
        for row in answer["counters"]
        if row["worker"] == worker and not row["kernel_class"]
    }


def test_one_session_a_node_tells_of_every_ranks_gpu(tmp_path: Path) -> None:
    """Rank 0 samples both GPUs; rank 1's phases are another way round, and its report has no samples."""
    one = write_export(
        tmp_path / "policy_worker_rank0_step3-4_n0_7.sqlite",
        two_phases(7, "generation", "train", gpus={0: FIRST}),
        # the other GPU of the node, which this process sees and does not use
        Process(9, gpus={0: SECOND_GPU}),
    )
    add_metrics(one, {0: sampled((80, 20)), 1: sampled((30, 60))})
    write_export(
        tmp_path / "vllm_worker_rank0_step3-4_n0_8.sqlite",
        two_phases(8, "train", "generation", gpus={0: SECOND_GPU}),
    )
    answer = answer_of(tmp_path, jobs=1, cache=False)
    policy, vllm = shares(answer, "policy_worker"), shares(answer, "vllm_worker")
    assert policy["generation", "SM active"] == pytest.approx(0.8, abs=1e-4)
    assert policy["train", "SM active"] == pytest.approx(0.2, abs=1e-4)
    assert policy["", "SM active"] == pytest.approx(0.5, abs=1e-4)
    assert vllm["train", "SM active"] == pytest.approx(0.3, abs=1e-4)
    assert vllm["generation", "SM active"] == pytest.approx(0.6, abs=1e-4)
    # requests and responses of a link are added, protocol and other units left out
    assert policy["train", "NVLink received"] == pytest.approx(0.3)
    assert policy["train", "PCIe received"] == policy["train", "DRAM read"] == pytest.approx(0.1)
    assert {metric for _, metric in policy} == {
        "SM active", "tensor active", "DRAM read", "NVLink received", "PCIe received"
    }  # fmt: skip


def test_means_are_those_of_an_oracle_that_goes_sample_by_sample(tmp_path: Path) -> None:
    """Unevenly sampled, with some samples lost; kernels of two kinds."""
    rng = random.Random(4)
    time, rows = 0, []
    while time < 40 * MS:
        time += rng.randrange(MS // 10, MS // 2)
        if not 12 * MS < time < 18 * MS:  # lost
            rows.append((time, {METRICS[0]: rng.randrange(101)}))
    work = [
        Work(name, start, start + 1000, start + length, 131 + i)
        for i, (name, start, length) in enumerate(
            ("flash_fwd_kernel" if i % 3 else "nvjet_gemm", i * MS + 37, rng.randrange(MS)) for i in range(39)
        )
    ]
    ranges = (("step 3", 0, 40 * MS), ("generation", 0, 25 * MS), ("train", 25 * MS, 40 * MS))
    path = write_export(
        tmp_path / "policy_worker_rank0_step3-4_n0_7.sqlite", Process(7, ranges, tuple(work), {0: FIRST})
    )
    add_metrics(path, {0: rows})

    def mean(*stretches: tuple[int, int]) -> float:
        total = known = 0.0
        for (before, _), (at, values) in pairwise(rows):
            if at - before > 3 * MS:
                continue
            inside = sum(max(0, min(at, end) - max(before, start)) for start, end in stretches)
            total, known = total + inside * values[METRICS[0]] / 100, known + inside
        return total / known

    answer = answer_of(tmp_path, jobs=1, cache=False)
    found = shares(answer, "policy_worker")
    assert found["generation", "SM active"] == pytest.approx(mean((0, 25 * MS)), abs=2e-5)
    assert found["train", "SM active"] == pytest.approx(mean((25 * MS, 40 * MS)), abs=2e-5)
    kinds = {row["kernel_class"]: row["share"] for row in answer["counters"] if row["kernel_class"]}
    for kind, name in (("attention", "flash_fwd_kernel"), ("gemm", "nvjet_gemm")):
        ran = [(w.start, w.end) for w in work if w.name == name]
        assert kinds[kind] == pytest.approx(mean(*ran), abs=2e-5)


def test_thinned_series_stay_exact_where_their_points_are(monkeypatch: pytest.MonkeyPatch) -> None:
    count = 10_001
    time = np.arange(count, dtype=np.int64) * 1000
    share = np.random.default_rng(1).random(count)
    series = counters._series("g", "SM active", time, share)
    assert series is not None
    monkeypatch.setattr(counters, "MOST_POINTS", 101)
    (thin,) = counters.fewer((series,))
    edges = thin.time[[10, 60]]
    assert len(thin.time) == 101
    assert thin.between(edges[:1], edges[1:]) == pytest.approx(series.between(edges[:1], edges[1:]))
    assert counters._series("g", "SM active", time[:1], share[:1]) is None


def test_they_come_back_from_the_cache_and_stand_on_the_page(tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text('{"job": "7"}')  # columns are kept in run folders alone
    path = write_export(
        tmp_path / "policy_worker_rank0_step3-4_n0_7.sqlite",
        two_phases(7, "generation", "train", gpus={0: FIRST}),
    )
    add_metrics(path, {0: sampled((80, 20))})
    first = read_report(path)
    again = read_report(path)
    assert len(first.metrics) == len(again.metrics) == 41 * 5
    for column in ("time", "gpu", "metric", "share"):
        assert np.array_equal(getattr(first.metrics, column), getattr(again.metrics, column))
    assert again.origin.metered == (FIRST,)
    report(tmp_path, form="json", jobs=1)
    assert '"metric":"SM active","share":0.8' in (tmp_path / "report.html").read_text()


def test_exports_without_metrics_have_none(tmp_path: Path) -> None:
    path = write_export(tmp_path / "a.sqlite", two_phases(7, "generation", "train", gpus={0: FIRST}))
    assert len(read_report(path, cache=False).metrics) == 0 == len(MetricSamples.none())
    answer = answer_of(path, jobs=1, cache=False)
    assert answer["counters"] == []


@pytest.mark.parametrize(
    ("name", "kept"),
    [
        ("SM Active [Throughput %]", "SM active"),
        ("SM Issue [Throughput %]", "SM issue"),
        ("DRAM Write Bandwidth [Throughput %]", "DRAM write"),
        ("NVLink TX Responses User Data [Throughput %]", "NVLink sent"),
        ("NVLink TX Responses Protocol Data [Throughput %]", None),
        ("PCIe TX Throughput [Throughput %]", "PCIe sent"),
        ("PCIe Write Requests to BAR1 [Requests]", None),
        ("Unallocated Warps in Active SMs [Throughput %]", None),
        ("GR Active [Throughput %]", None),
    ],
)
def test_names_that_nsys_gives(name: str, kept: str | None) -> None:
    assert kept_name(name) == kept
