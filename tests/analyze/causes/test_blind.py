"""A blind reading of simulated runs, each with one planted cause: the first finding names it."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("msgspec")
from msgspec.structs import replace
from tests.analyze.as_data import data_of
from tests.analyze.causes.loops import Loop, usual_loop

from rlprof_ops.analyze.output.answer import build

SEEDS = range(10)


def first_finding(loop: Loop) -> tuple[dict[str, Any], dict[str, Any]]:
    summaries = loop.summaries()
    answer = data_of(build(Path("/nonexistent"), [s.report for s in summaries], summaries))
    return answer["findings"][0], answer


def planted(seed: int, phase: str, more_ns: int, rank: int | None) -> Loop:
    """`rank` None: another one in each step."""
    loop = usual_loop(seed, rollout=4, policy=4, steps=6, noise=0.04)
    for (step, _, its_phase, its_rank), pieces in loop.work.items():
        if its_phase == phase and its_rank == ((step + seed) % 4 if rank is None else rank):
            pieces[-1] += more_ns
    return loop


@pytest.mark.parametrize("seed", SEEDS)
def test_a_slow_rank_is_named_first(seed: int) -> None:
    found, answer = first_finding(planted(seed, "train", 150_000, seed % 4))
    assert (found["kind"], found["phase"]) == ("straggler", "train")
    assert answer["ranks"][found["rank"]]["rank"] == seed % 4
    assert found["saves_ns"] == pytest.approx(150_000, rel=0.2)
    assert found["link"] == f"#step={found['step']}&rank={seed % 4}&worker=policy"


@pytest.mark.parametrize("seed", SEEDS)
def test_a_long_tail_is_named_first(seed: int) -> None:
    found, _ = first_finding(planted(seed, "generation", 250_000, None))
    assert (found["kind"], found["phase"], found["worker"]) == ("tail", "generation", "rollout")
    assert found["saves_ns"] == pytest.approx(250_000, rel=0.2)


def first_without_clocks(loop: Loop) -> tuple[dict[str, Any], dict[str, Any]]:
    """Rollout on a node of its own, whose clock nothing joins to the others'."""
    apart = []
    for s in loop.summaries():
        host = "n1" if s.report.worker == "rollout" else "n0"
        apart.append(replace(s, host=host, report=dataclasses.replace(s.report, host=host)))
    answer = data_of(build(Path("/nonexistent"), [s.report for s in apart], apart))
    assert answer["clocks"]["residual_ns"] is None
    return answer["findings"][0], answer


def test_a_long_tail_needs_no_clock_across_roles() -> None:
    """Thirty seeds, and thirty of even runs."""
    for seed in range(30):
        found, _ = first_without_clocks(planted(seed, "generation", 250_000, None))
        assert (found["kind"], found["phase"], found["worker"]) == ("tail", "generation", "rollout")
        assert found["saves_ns"] is None and found["cost_ns"] == pytest.approx(250_000, rel=0.2)
        _, quiet = first_without_clocks(usual_loop(seed, rollout=4, policy=4, steps=6, noise=0.04))
        assert not {"straggler", "tail"} & {f["kind"] for f in quiet["findings"]}


@pytest.mark.parametrize("seed", range(30))
def test_who_waits_for_a_rank_of_its_own_worker_is_in_no_unexplained_time(seed: int) -> None:
    loop = planted(seed, "generation", 250_000, None)
    _, answer = first_finding(loop)
    times = loop.run()
    for row in answer["anatomy"]:
        at, nobody = times.step[row["step"]][0], 0
        for begin, end in sorted((times.begin[key], times.end[key]) for key in times.begin):
            if times.step[row["step"]][0] <= begin < times.step[row["step"]][1]:
                nobody += max(begin - at, 0)
                at = max(at, end)
        assert row["unexplained_ns"] == nobody + times.step[row["step"]][1] - at
    assert not [f for f in answer["findings"] if f["kind"] == "unexplained"]


@pytest.mark.parametrize("seed", SEEDS)
def test_an_exposed_weight_sync_is_named_first(seed: int) -> None:
    loop = usual_loop(seed, rollout=4, policy=4, steps=6, noise=0.04)
    for (_, worker, phase, _), pieces in loop.work.items():
        if phase == "weight_sync" and worker == "rollout":
            pieces[0] += 200_000
    found, _ = first_finding(loop)
    assert (found["kind"], found["phase"]) == ("weight_sync", "weight_sync")
    assert found["saves_ns"] == pytest.approx(280_000, rel=0.1)


@pytest.mark.parametrize("seed", SEEDS)
def test_of_two_causes_the_dearer_leads_and_without_one_nobody_is_accused(seed: int) -> None:
    loop = planted(seed, "train", 50_000, 2)
    for (step, _, phase, rank), pieces in loop.work.items():
        if phase == "generation" and rank == step % 4:
            pieces[0] += 250_000
    found, answer = first_finding(loop)
    assert found["kind"] == "tail"
    saves = [f["saves_ns"] for f in answer["findings"] if f["saves_ns"] is not None]
    assert saves == sorted(saves, reverse=True)
    _, quiet = first_finding(usual_loop(seed, rollout=4, policy=4, steps=6, noise=0.04))
    assert not {"straggler", "tail"} & {f["kind"] for f in quiet["findings"]}


def nodes_of_eight(seed: int, ranks: int, slower: float) -> tuple[Loop, float]:
    """A loop whose policy has eight ranks on each node, and what a step is longer because all work in train
    on one node takes `slower` times as long.
    """
    loop = usual_loop(seed, rollout=4, policy=ranks, steps=6, noise=0.04)
    loop.ranks_a_node = 8
    for (_, _, phase, _), pieces in loop.work.items():
        if phase == "weight_sync":
            pieces[:] = [ns // 4 for ns in pieces]
    even = loop.length()
    for (_, _, phase, rank), pieces in loop.work.items():
        if phase == "train" and rank // 8 == seed % (ranks // 8):
            pieces[:] = [round(slower * ns) for ns in pieces]
    return loop, (loop.length() - even) / loop.steps


@pytest.mark.parametrize("ranks", [16, 32, pytest.param(64, marks=pytest.mark.long)])
def test_a_slow_node_is_named_before_its_ranks(ranks: int) -> None:
    """Thirty seeds; of ten quiet runs none names anybody."""
    first, errors = 0, []
    for seed in range(30):
        loop, truth_ns = nodes_of_eight(seed, ranks, 1.25)
        found, answer = first_finding(loop)
        node = f"n{seed % (ranks // 8)}"
        [row] = answer["stragglers"]
        assert row["node"] == node and len(row["ranks"]) == 8
        assert {answer["ranks"][rank]["host"] for rank in row["ranks"]} == {node}
        first += found["kind"] == "straggler" and found["text"].startswith(f"Node {node} is slow in train")
        [change] = [w for w in answer["what_if"] if w["kind"] == "like_peers"]
        assert (change["node"], change["rank"], change["saves_ns"]) == (node, None, found["saves_ns"])
        errors.append(abs(change["saves_ns"] - truth_ns) / truth_ns)
        if seed % 3 == 0:
            quiet, _ = nodes_of_eight(seed, ranks, 1.0)
            assert not first_finding(quiet)[1]["stragglers"]
    assert first >= 28 and max(errors) < 0.2


def test_a_slow_node_that_is_slow_in_two_phases_is_one_finding_and_one_change() -> None:
    loop, _ = nodes_of_eight(3, 16, 1.25)
    for (_, worker, phase, rank), pieces in loop.work.items():
        if (worker, phase) == ("policy", "weight_sync") and rank // 8 == 1:
            pieces[:] = [2 * ns for ns in pieces]
    found, answer = first_finding(loop)
    assert [(row["node"], row["phase"]) for row in answer["stragglers"]] == [
        ("n1", "train"), ("n1", "weight_sync"),
    ]  # fmt: skip
    assert "Node n1 is slow in train: 8 ranks of policy on it take" in found["text"]
    assert "It is slow in weight_sync (" in found["text"]
    assert [f["kind"] for f in answer["findings"]].count("straggler") == 1
    changes = [w for w in answer["what_if"] if w["kind"] == "like_peers"]
    assert [w["change"] for w in changes] == ["node n1 like the other nodes in train and weight_sync"]
    assert "nvidia-smi" in found["advice"] and "Slurm" in found["advice"]


def test_a_rank_that_is_slower_still_than_its_slow_node_is_named_beside_it() -> None:
    loop, _ = nodes_of_eight(3, 32, 1.25)
    for (_, _, phase, rank), pieces in loop.work.items():
        if phase == "train" and rank == 26:
            pieces[:] = [round(1.4 * ns) for ns in pieces]
    _, answer = first_finding(loop)
    assert [(row["node"], len(row["ranks"])) for row in answer["stragglers"]] == [("n3", 8), (None, 1)]
    assert answer["ranks"][answer["stragglers"][1]["rank"]]["rank"] == 26
