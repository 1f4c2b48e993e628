"""For whom others wait in collectives, by when each rank has called them: simulated runs of known truth."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from time import process_time
from typing import Any

import pytest

from rlprof_ops.recorder.detect.anomaly import SLOW_RANK
from rlprof_ops.recorder.detect.late_ranks import LateRanks
from rlprof_ops.recorder.detect.meetings import meetings
from rlprof_ops.recorder.job_view import JobView
from rlprof_ops.recorder.samples.step_marks import WindowMark
from rlprof_ops.runtime.on_demand.arrivals import Arrivals, Call, MetGroup, packed
from tests.recorder.meeting_ranks import WORKER, WORLD, Ranks, watched
from tests.recorder.simulated import BEGIN_NS
from tests.recorder.test_detection import news

MS = 1_000_000
NOISES = ("white", "ar", "bursts")
TWO_NODES: Mapping[str, Any] = {"nodes": 2, "skew_s": 1.0}
KINDS: Mapping[str, Mapping[str, Any]] = {
    "white": {},
    "alike": {"noise": "ar"},
    "bursts": {"noise": "bursts"},
    "one_a_phase": {"ranks": 4, "turns": 2, "turn_s": 2.0},
    "one_phase": {"slow_in": "train"},
    "skewed_clocks": {"nodes": 2, "skew_s": 0.5},
    "tensor_parallel": {"nodes": 2, "skew_s": 0.5, "tensor": 4},
    "ahead": {"ahead": True},
    "untold": {"tells": False},
}


@pytest.mark.parametrize("kind", [*KINDS])
def test_a_rank_that_is_slow_inside_a_phase_is_named(kind: str) -> None:
    """Where all ranks take as long as the slow one: 20 seeds of the plain kind, of which 18 are right."""
    seeds = 20 if kind == "white" else 5
    right = 0
    for seed in range(seeds):
        slow = 1 + seed % 2
        minutes = 20 if kind == "untold" else 10  # there each look is one step
        found = watched(Ranks(seed, slow={slow: 1.4}, **KINDS[kind]), minutes)
        assert {each.ranks for each in found} <= {(slow,)}, (seed, found)
        right += len(found) == 1
    assert right >= 0.9 * seeds, f"{right} of {seeds}"


CALM = [dict(noise=noise, **more) for noise in NOISES for more in ({}, {"ranks": 4}, TWO_NODES)]


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("seeds", [range(2), pytest.param(range(2, 5), marks=pytest.mark.long)])
def test_runs_without_a_cause_name_nobody(seeds: range) -> None:
    """Half hours of white noise, of noise that is alike from step to step, bursts, skewed clocks, a log
    that rank 0 writes alone, pipelines, hosts that run ahead.
    """
    kinds = [*CALM, {"extra_s": 0.8}, {"extra_s": 0.8, "turns": 2}, {"stages": True}, {"ahead": True}]
    false = [
        (kind, seed, finding.text)
        for kind in kinds
        for seed in seeds
        for finding in watched(Ranks(seed, sigma=0.08, **kind), minutes=30)
    ]
    assert len(false) <= len(seeds) * len(kinds) / 60, false


def test_what_the_others_wait_is_what_the_rank_takes_longer() -> None:
    """Of twelve turns of 400 ms, in half of which or in all of which it takes 1.4 times as long."""
    for where, name, truth_s in (("train", "train", 0.96), ("", "", 1.92)):
        [found] = watched(Ranks(3, sigma=0.02, slow={5: 1.4}, slow_in=where), minutes=8)
        assert (found.kind, found.worker, found.phase) == (SLOW_RANK, WORKER, name)
        assert found.evidence["waited_s"] == pytest.approx(truth_s, rel=0.15)
        assert found.evidence["seconds"] / found.evidence["peers_s"] == pytest.approx(1.4, rel=0.1)
        assert re.fullmatch(
            r"policy_worker rank 5 is slow since step \d+: it comes last to the collectives of default_pg"
            rf"{' in train' if name else ''}, and the others wait [\d.]+ m?s of a step of [\d.]+ s",
            found.text,
        )


@pytest.mark.parametrize("first_s", [70, 130])
def test_a_first_step_of_many_looks_is_one_step(first_s: float) -> None:
    """Nobody has told a step by the first looks, which are no steps of their own then."""
    [found] = watched(Ranks(3, slow={5: 1.4}, first_s=first_s), minutes=8)
    assert found.ranks == (5,) and 0 < found.step < 60 and found.evidence["since_step"] == 2


@pytest.mark.parametrize("seed", range(3))
def test_it_is_slow_since_then_and_not_since_a_step_that_was_slow_by_chance(seed: int) -> None:
    job = Ranks(seed, sigma=0.08, slow={5: 1.4}, slow_from=20)
    [found] = watched(job, minutes=10)
    assert 18 <= found.evidence["since_step"] <= 21, found.text


def test_looks_of_many_ranks_are_taken_quickly() -> None:
    """512 looks of groups of 512 took 1.4 s of CPU time when each was held against all that had come."""
    late, groups = LateRanks(lambda *_: None, lambda *_: False), (replace(PAIR, members=tuple(range(512))),)
    began = process_time()
    for rank in range(511):
        late.add("n1", look(rank, ("all_reduce", 1, 0), groups=groups))
    assert process_time() - began < 0.5


def test_a_host_that_runs_ahead_is_not_said_to_keep_others_waiting() -> None:
    [found] = watched(Ranks(3, ahead=True, slow={5: 1.4}), minutes=8)
    assert "its host is behind the others' " in found.text and "wait" not in found.text
    assert found.evidence["waited_s"] == pytest.approx(1.92, rel=0.2)


def test_a_clock_is_no_rank_and_a_node_is_none_either() -> None:
    """With one rank a node nothing is known; of a node whose ranks are all slow, nobody is named."""
    assert not watched(Ranks(1, ranks=2, nodes=2, slow={1: 1.4}), minutes=8)
    assert not watched(Ranks(1, nodes=2, slow=dict.fromkeys(range(4, 8), 1.4)), minutes=8)


def test_a_rank_is_named_once_by_whichever_is_first() -> None:
    """Its steps name it in a run whose phases end without a collective."""
    view = JobView("1", ["n0"])
    job = Ranks(3, slow={5: 1.4})
    [first] = watched(job, 8, view)
    again = replace(first, text="policy_worker rank 5 is slow since step 3: train takes 2 s")
    assert not view._is_new(again)


def test_calls_while_a_window_is_open_prove_nothing() -> None:
    view = JobView("1", ["n0"])
    opened = WindowMark("opened", BEGIN_NS, WORKER, 5, "torch", 1, "")
    view.take(replace(news([], windows=(opened,)), node="n0"))
    assert not watched(Ranks(3, slow={5: 1.4}), 8, view)


# ---- what a rank does by itself between two collectives

PAIR = MetGroup("0", "default_pg", "gloo", (0, 1))


def look(rank: int, *calls: tuple[str, int, int], groups: tuple[MetGroup, ...] = (PAIR,)) -> Arrivals:
    """Of (operation, sequence, ms) of the last group."""
    found = [Call(len(groups) - 1, name, number, BEGIN_NS + ms * MS) for name, number, ms in calls]
    return packed(found, groups, WORLD, rank, BEGIN_NS, 100 + rank)


def own_ms(*looks: Arrivals, node: str = "n1") -> list[dict[int, float]]:
    told = {each.rank: (node, each) for each in looks}
    return [
        {rank: (t_ns - free_ns) / MS for rank, (free_ns, t_ns) in each.own.items()}
        for each in meetings(told, {})
    ]


def test_waiting_in_a_collective_is_not_ones_own_time() -> None:
    one = look(0, ("all_reduce", 1, 0), ("all_reduce", 2, 140), ("all_reduce", 3, 290))
    two = look(1, ("all_reduce", 1, 40), ("all_reduce", 2, 180), ("all_reduce", 3, 300))
    assert own_ms(one, two) == [{0: 100.0, 1: 140.0}, {0: 110.0, 1: 120.0}]


def test_what_has_been_judged_is_not_judged_again() -> None:
    one = look(0, ("all_reduce", 1, 0), ("all_reduce", 2, 140), ("all_reduce", 3, 290))
    two = look(1, ("all_reduce", 1, 40), ("all_reduce", 2, 180), ("all_reduce", 3, 300))
    told = {0: ("n1", one), 1: ("n1", two)}
    assert [each.sequence for each in meetings(told, {PAIR: 2})] == [3]


def test_the_source_of_a_broadcast_and_the_reader_of_a_gather_are_not_late() -> None:
    for operation in ("broadcast", "gather", "reduce", "scatter"):
        one = look(0, ("all_reduce", 1, 0), (operation, 2, 500))
        two = look(1, ("all_reduce", 1, 0), (operation, 2, 10))
        assert own_ms(one, two) == []


def test_nobody_is_held_against_another_stage_of_a_pipeline() -> None:
    """They send to each other in the group of the stages; those of one stage reduce in another."""
    pipeline, stage = MetGroup("1", "pp", "gloo", (0, 1)), MetGroup("2", "dp", "gloo", (0, 2))
    calls = [("all_reduce", 1, 0), ("all_reduce", 2, 140)]
    for group, judged in ((stage, 1), (replace(pipeline, name="3", description="world"), 0)):
        looks = []
        for rank in group.members:
            mine = look(rank, *calls, groups=(pipeline, group))
            sent = [Call(0, "", 0, BEGIN_NS + 200 * MS)]
            looks.append(packed(mine.calls() + sent, mine.groups, WORLD, rank, BEGIN_NS, 100 + rank))
        assert len(own_ms(*looks)) == judged


def test_a_host_that_has_called_the_next_one_did_not_wait() -> None:
    """Calls that return at once: rank 0 is ahead by 40, 80 and 120 ms, and waits at the end of the step."""
    group = replace(PAIR, backend="ucc")
    calls = [[(100, 200, 300, 430)], [(140, 280, 420, 430)]]
    one, two = (
        look(rank, *(("all_reduce", n, ms) for n, ms in enumerate(each[0], 1)), groups=(group,))
        for rank, each in enumerate(calls)
    )
    assert own_ms(one, two) == [{0: 100.0, 1: 140.0}, {0: 100.0, 1: 140.0}, {0: 10.0, 1: 10.0}]


def test_a_look_comes_over_the_wire_as_it_was_and_rubbish_does_not() -> None:
    told = look(1, ("all_reduce", 7, 0), ("barrier", 8, 40), ("all_reduce", 9, 41))
    assert [(call.operation, call.sequence, call.t_ns - BEGIN_NS) for call in told.calls()] == [
        ("all_reduce", 7, 0),
        ("barrier", 8, 40 * MS),
        ("all_reduce", 9, 41 * MS),
    ]
    assert news([], arrivals=(told,)).arrivals == (told,)
    for rows in ((0, 0, 1), (3, 0, 1, 1), (0, 9, 1, 1), (-1, 0, 1, 1)):
        with pytest.raises(ValueError):
            replace(told, rows=rows).calls()
        view = JobView("1", ["n1"])
        other = look(0, ("all_reduce", 7, 0))
        assert not view.take(news([], arrivals=(replace(told, rows=rows), other)))


def test_the_slow_rank_of_a_second_trainer_is_named_too() -> None:
    """The first one has told 8 minutes, all ranks alike; the second one counts its steps from 1 again."""
    view = JobView("1", ["n0"])
    first = Ranks(1, sigma=0.02)
    assert not watched(first, minutes=8, view=view)
    again = Ranks(2, sigma=0.02, slow={5: 1.4}, trainer=1, begin_ns=BEGIN_NS + 3600 * 10**9)
    [found] = watched(again, minutes=8, view=view)
    assert found.ranks == (5,) and 1 <= found.evidence["since_step"] <= 3
