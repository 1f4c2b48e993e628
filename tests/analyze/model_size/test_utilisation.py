"""MFU of runs whose times, tokens and GPUs are known; and what is said where something is not told."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytest.importorskip("msgspec")

from click.testing import CliRunner
from tests.analyze.as_data import answer_of
from tests.analyze.fake_run import PLAN, make_run
from tests.analyze.whole_run.generations import tokens_a_step, two_engines

from rlprof_ops.analyze.model_size.parameters import told_parameters
from rlprof_ops.analyze.model_size.utilisation import StatedModel
from rlprof_ops.commands import report
from rlprof_ops.errors import UsageError

N, TOKENS = 1_000_000_000, 4096


def seconds(worker: str, phase: str) -> float:
    return next(length for name, _, length in PLAN[worker] if name == phase) / 1e6


def test_the_share_of_the_peak_is_what_was_simulated(tmp_path: Path) -> None:
    told = StatedModel(told_parameters("1e9"), TOKENS, None)
    mfu = answer_of(make_run(tmp_path, ranks=4, generation_ranks=2), jobs=1, cache=False, model=told)["mfu"]
    assert mfu is not None and mfu["untold"] == [] and mfu["tokens_per_step"] == TOKENS
    rows = {(row["worker"], row["phase"]): row for row in mfu["rows"]}
    assert set(rows) == {
        ("generation_worker", "generation"), ("policy_worker", "ref_logprob"), ("policy_worker", "train")
    }  # fmt: skip
    for (worker, phase), row in rows.items():
        gpus, factor = (2, 2) if worker == "generation_worker" else (4, 6 if phase == "train" else 2)
        achieved = factor * N * TOKENS / seconds(worker, phase) / gpus / 1e12
        assert (row["gpus"], row["flops_a_token"], row["peak_tflops"]) == (gpus, factor, 989.4)
        assert row["tflops"] == pytest.approx(achieved, rel=1e-3)
        assert row["share"] == pytest.approx(achieved / 989.4, abs=1e-5)


def test_all_ranks_of_the_job_share_the_tokens(tmp_path: Path) -> None:
    """Four of 64 ranks were captured: the step's tokens went to 64 GPUs."""
    run = make_run(tmp_path, ranks=4)
    (run / "manifest.json").write_text(json.dumps({"world": {"policy_worker": 64}, "captures": []}))
    mfu = answer_of(run, jobs=1, cache=False, model=StatedModel(told_parameters("1e9"), TOKENS, 100.0))["mfu"]
    assert mfu is not None
    train = next(row for row in mfu["rows"] if row["phase"] == "train")
    assert (train["gpus"], train["peak_tflops"]) == (64, 100.0)
    expected = 6 * N * TOKENS / seconds("policy_worker", "train") / 64 / 1e14
    assert train["share"] == pytest.approx(expected, abs=1e-5)


def test_tokens_come_from_the_engines(tmp_path: Path) -> None:
    two_engines(tmp_path)
    mfu = answer_of(tmp_path, jobs=1, cache=False, model=StatedModel(told_parameters("7B")))["mfu"]
    assert mfu is not None and mfu["tokens_per_step"] == pytest.approx(tokens_a_step() + 2000, rel=0.01)
    assert mfu["rows"] == [] and mfu["untold"] == [
        "no phase of train, generation, logprob, ref_logprob was captured"
    ]


def test_the_command_says_what_it_lacks(tmp_path: Path) -> None:
    run = str(make_run(tmp_path, ranks=2))

    def said(*options: str) -> str:
        done = CliRunner().invoke(report.command, [run, "-j", "1", "--no-cache", *options])
        output = str(done.exception) if isinstance(done.exception, UsageError) else done.output
        return " ".join(output.split())  # a terminal's lines end where it is full

    assert "give --tokens-per-step" in said("--model-params", "7e9")
    assert "--model-params 7e9 and --model-config" in said("--model-params", "7e9", "--model-config", "x")
    assert "--tokens-per-step 5: MFU needs --model-params" in said("--tokens-per-step", "5")
    assert "x: cannot be read" in said("--model-config", "x")
    told = said("--model-params", "1e9", "--tokens-per-step", "4096")
    assert "policy_worker train: 3" in told and "of 2 GPUs at 989.4 TFLOP/s" in told, told
    page = (tmp_path / "report.html").read_text()
    assert '"tokens_per_step":4096' in page


def test_a_gpu_that_nobody_knows_is_named(tmp_path: Path) -> None:
    from tests.analyze.shared import kernel, mark, write_trace

    events = [mark("step 3", 0, 1000), mark("train", 10, 900), kernel("k", 20, 100)]
    write_trace(
        tmp_path / "policy_worker_rank0_step3-3_n0_7.pt.trace.json",
        events,
        deviceProperties=[{"id": 0, "name": "Zeta Z9"}],
    )
    mfu = answer_of(tmp_path, jobs=1, cache=False, model=StatedModel(told_parameters("7B"), 10))["mfu"]
    assert mfu is not None and mfu["rows"] == []
    assert mfu["untold"] == ["policy_worker: the peak of Zeta Z9 is not known here; give --peak-tflops"]


def capture(folder: Path, worker: str, rank: int, pid: int, gpu: bool = True) -> None:
    from tests.analyze.shared import kernel, mark, write_trace

    events = [mark("step 3", 0, 1000), mark("generation", 10, 900)]
    write_trace(
        folder / f"{worker}_rank{rank}_step3-3_n0_{pid}.pt.trace.json",
        events + [kernel("k", 20, 880)] * gpu,
        deviceProperties=[{"id": 0, "name": "NVIDIA H100 80GB HBM3"}] * gpu,
    )


ONE_SERVER = [("rollout_tp0", 0), ("rollout_tp1", 0)]
TWO_SERVERS = [*ONE_SERVER, ("rollout_tp0", 1), ("rollout_tp1", 1)]
WITH_STAGES = [(f"rollout_pp{stage}_tp{place}", 0) for stage in (0, 1) for place in (0, 1)]
# A server on two nodes, and two of them.
TWO_NODES = [("rollout", 0), ("rollout_node1", 0)]
WITH_PARTS = [("rollout_tp0", 0), ("rollout_tp1", 0), ("rollout_node1_tp2", 0), ("rollout_node1_tp3", 0)]
# Each data parallel part is a server of its own, whose rank it has.
APART = [(f"rollout_dp{rank}_tp{place}", rank) for rank in (0, 1) for place in (0, 1)]


@pytest.mark.parametrize(
    ("captured", "world", "gpus"),
    [
        (ONE_SERVER, {}, 2),
        (TWO_SERVERS, {}, 4),
        (TWO_SERVERS[:-1], {}, 4),  # a report was lost
        (ONE_SERVER, {"rollout": 4}, 8),  # inner workers inside their server's session
        (ONE_SERVER, {"rollout": 4, "rollout_tp0": 4, "rollout_tp1": 4}, 8),  # actors of their own
        (WITH_STAGES, {"rollout": 2}, 8),
        (TWO_NODES, {"rollout": 1, "rollout_node1": 1}, 2),
        ([*TWO_NODES, ("rollout", 1), ("rollout_node1", 1)], {}, 4),
        (WITH_PARTS, {"rollout": 3, "rollout_node1": 3}, 12),
        (APART, {"rollout_dp0_tp0": 1, "rollout_dp1_tp0": 2}, 4),
        (APART, {"rollout": 4}, 8),
        (ONE_SERVER + ONE_SERVER, {"rollout": 1}, 4),  # two servers that call themselves rank 0
    ],
)
def test_inner_workers_share_the_tokens_of_their_role(
    tmp_path: Path, captured: list[tuple[str, int]], world: dict[str, int], gpus: int
) -> None:
    for pid, (worker, rank) in enumerate(captured, 100):
        capture(tmp_path, worker, rank, pid)
    (tmp_path / "manifest.json").write_text(json.dumps({"world": world, "captures": []}))
    told = StatedModel(told_parameters("1e9"), TOKENS)
    mfu = answer_of(tmp_path, jobs=1, cache=False, model=told)["mfu"]
    assert mfu is not None and mfu["untold"] == []
    [row] = mfu["rows"]
    assert (row["worker"], row["phase"], row["gpus"]) == ("rollout", "generation", gpus)
    assert row["tflops"] == pytest.approx(2 * N * TOKENS / 0.9e-3 / gpus / 1e12, rel=1e-3)


def test_a_server_whose_inner_workers_compute_has_no_gpu_of_its_own(tmp_path: Path) -> None:
    capture(tmp_path, "rollout", 0, 98, gpu=False)
    capture(tmp_path, "rollout_node1", 0, 99, gpu=False)
    for pid, (worker, rank) in enumerate(WITH_PARTS, 100):
        capture(tmp_path, worker, rank, pid)
    told = StatedModel(told_parameters("1e9"), TOKENS)
    mfu = answer_of(tmp_path, jobs=1, cache=False, model=told)["mfu"]
    assert mfu is not None
    assert [(row["worker"], row["gpus"]) for row in mfu["rows"]] == [("rollout", 4)]
