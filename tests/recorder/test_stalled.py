"""When a collective that stands is said to hang: what its missing rank does, and what is learnt."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from rlprof_ops.host.ports import Connection
from rlprof_ops.job.folders import pinned_run
from rlprof_ops.recorder import head_recorder
from rlprof_ops.recorder.detect.anomaly import HANG, LONG_WAIT, Anomaly
from rlprof_ops.recorder.detect.stalled import stalled
from rlprof_ops.recorder.detect.trigger import Trigger
from rlprof_ops.recorder.job_view import JobView
from rlprof_ops.recorder.samples.engines import EngineSample
from rlprof_ops.recorder.samples.gpu import GpuSample
from rlprof_ops.recorder.samples.rank_states import ALONE, RankState
from rlprof_ops.request import CaptureSpec, ProfileRequest, When
from rlprof_ops.runtime.marks import Now
from tests.recorder.simulated import BEGIN_NS, healthy
from tests.recorder.test_detection import findings, news

T_NS = BEGIN_NS + 10**12


def waiting(rank: int, still_s: float = 200, **more: object) -> RankState:
    """In the fourth all_reduce of three ranks, with NCCL's timeout of 600 s."""
    members = (0, 1, 2)
    state = RankState(
        100 + rank, "policy_worker", "w", rank, still_s, "default_pg", 4, "all_reduce", members, 600.0, "",
        "S", 1.0, 0.0, "", T_NS - 10**9, "", 300.0,
    )  # fmt: skip
    return replace(state, **more)  # type: ignore[arg-type]


def elsewhere(rank: int = 0, cores: float = 0.0, mib_s: float = 0.0, state: str = "S") -> RankState:
    """In no collective."""
    told_ns = T_NS - 30 * 10**9 if state in ("", "Z") else T_NS
    return waiting(
        rank, group="", members=(), timeout_s=0.0, cores=cores, mib_s=mib_s, state=state, told_ns=told_ns
    )


def judged(*states: RankState, suspect_s: float = 30.0, engines_work: bool = False) -> list[Anomaly]:
    return stalled({"n1": states}, suspect_s, T_NS, engines_work)


@pytest.mark.parametrize(
    ("state", "does"),
    [
        ("", "is gone"),
        ("Z", "has died and is not reaped (zombie)"),
        ("T", "is stopped (SIGSTOP)"),
        ("D", "is in an uninterruptible wait, as for a disk (state D)"),
        ("S", "does nothing"),
    ],
)
def test_the_missing_rank_is_named_with_its_state(state: str, does: str) -> None:
    [finding] = judged(elsewhere(0, state=state), waiting(1, 40), waiting(2, 41))
    who = f"rank 0 (policy_worker, node n1, pid 100) {does}"
    assert finding.text == f"{who}: ranks 1, 2 have waited 41.0 s in all_reduce #4 of default_pg"
    assert (finding.kind, finding.ranks, finding.node) == (HANG, (0,), "n1")


def test_a_rank_that_saves_to_slow_storage_is_no_hang() -> None:
    """It writes in bursts, and waits for the disk in between: in `fsync`, state D, or asleep."""
    for state in ("S", "D"):
        between = replace(elsewhere(0, state=state), idle_s=25.0)
        assert not judged(between, waiting(1, 100), waiting(2, 100))
        [finding] = judged(replace(between, idle_s=31.0), waiting(1, 100), waiting(2, 100))
        assert finding.kind == HANG
        assert judged(between, waiting(1, 280), waiting(2, 280))[0].kind == LONG_WAIT


def test_what_a_missing_rank_runs_for_ray_is_named() -> None:
    [finding] = judged(replace(elsewhere(0), task="WorkerDict.actor_update"), waiting(1, 40), waiting(2, 40))
    assert finding.text.startswith("rank 0 (policy_worker, WorkerDict.actor_update, node n1, pid 100) does")


LINK = Connection("10.0.0.1:41000", "10.0.0.2:29500", 1258291, 0)
LOST = "GPU 3 of node n2 has told XID 79 (it has fallen off the bus)"


def two_nodes(*states: RankState, here: tuple[str, ...] = ("10.0.0.1", "10.0.0.2")) -> list[Anomaly]:
    """The last one on n2, whose GPU is lost."""
    placed = {"n1": [replace(each, here=here[0]) for each in states[:-1]]}
    placed["n2"] = [replace(states[-1], here=here[1])]
    return stalled(placed, 30.0, T_NS, gpu_faults={"n1": [], "n2": [LOST]})


def test_the_peer_of_a_missing_rank_is_a_node_and_has_not_taken_what_was_sent() -> None:
    sends = replace(elsewhere(0), awaits="10.0.0.2:29500", stuck=(LINK, replace(LINK, unsent=0, unread=9)))
    [finding] = two_nodes(sends, waiting(1, 40, stuck=(LINK,)), waiting(2, 41))
    assert finding.text == (
        "rank 0 (policy_worker, node n1, pid 100) waits for an answer of n2:29500: ranks 1, 2 have waited"
        " 41.0 s in all_reduce #4 of default_pg; rank 0's connection to n2:29500 has 1.2 MiB unsent"
    )
    [finding] = two_nodes(sends, waiting(1, 40), waiting(2, 41), here=("", ""))
    assert "an answer of 10.0.0.2:29500: " in finding.text
    [finding] = two_nodes(waiting(0, 40), waiting(1, 40), elsewhere(2))
    assert finding.text.endswith(f"of default_pg; {LOST}")
    [finding] = two_nodes(waiting(0, 40), waiting(1, 40), elsewhere(2, state="T"))
    assert finding.text.endswith("of default_pg"), "why it is missing is known"


def test_a_gpu_and_a_link_of_another_nodes_news_are_suspects() -> None:
    view = JobView("1", ["n1"])
    end = in_generation(view)
    lost = GpuSample(3, 0, 40, 90, 300, 1, 80_000, 0, 0, 0, 79, 2, 0)
    states = tuple(waiting(rank, 250, stuck=(LINK,), here="10.0.0.2") for rank in range(3))
    view.take(news([], gpus=(lost,), ranks=states))
    [finding] = view.look(end + 260 * 10**9)
    suspects = finding.text.partition("; suspect: ")[2].split("; ")
    assert (
        suspects[0]
        == "GPU 3 of node n1 has told XID 79 (it has fallen off the bus) and has counted 2 ECC errors"
    )
    assert suspects[1] == "rank 0's connection to n1:29500 has 1.2 MiB unsent"


def test_where_nobody_is_missing_the_suspects_are_named() -> None:
    unread = replace(LINK, unsent=0, unread=3 << 20)
    [finding] = two_nodes(waiting(0, 250, stuck=(LINK,)), waiting(1, 250), waiting(2, 250, stuck=(unread,)))
    suspects = [
        LOST,
        "rank 0's connection to n2:29500 has 1.2 MiB unsent",
        "rank 2's connection to n2:29500 has 3.0 MiB unread",
    ]
    said = "nobody is missing: ranks 0-2 have waited 250 s in all_reduce #4 of default_pg; suspect: "
    assert finding.text == said + "; ".join(suspects)
    assert finding.evidence["suspects"] == suspects
    other = waiting(2, 250, operation="barrier", stuck=(unread,))
    assert "suspect" not in two_nodes(waiting(0, 250), waiting(1, 250), other)[0].text


def test_a_rank_that_ends_after_a_long_wait_is_no_hang() -> None:
    """A checkpoint at the end: rank 0 has ended, and rank 1 has not looked since it waited for it."""
    for state in ("", "Z"):
        ended = replace(elsewhere(0, state=state), told_ns=T_NS - 5 * 10**9)
        assert not judged(ended, waiting(1, 40), waiting(2, 41))
        later = [waiting(rank, 40, told_ns=T_NS + 6 * 10**9) for rank in (1, 2)]
        assert judged(ended, *later)[0].ranks == (0,)


def test_a_stopped_rank_is_no_excuse_for_one_that_works() -> None:
    stopped = elsewhere(1, state="T")
    [finding] = judged(elsewhere(0, cores=1.0), stopped, waiting(2, 40))
    assert finding.kind == HANG and finding.ranks == (1,)


@pytest.mark.parametrize("work", [{"cores": 0.3}, {"mib_s": 300.0}])
def test_who_works_is_waited_for_until_nearly_half_of_the_timeout(work: dict[str, float]) -> None:
    saves = elsewhere(0, **work)
    assert not judged(saves, waiting(1, 260), waiting(2, 260))
    [finding] = judged(saves, waiting(1, 275), waiting(2, 275))
    assert (
        finding.kind == LONG_WAIT and "rank 0 (policy_worker, node n1, pid 100) is working (" in finding.text
    )
    assert finding.text.endswith(", and the group's timeout is 600 s")


def test_a_rank_that_waits_for_somebody_who_works_is_no_hang() -> None:
    """Rank 0 asks a rollout server while the others stand in a broadcast."""
    states = (elsewhere(0), waiting(1, 100), waiting(2, 100))
    assert [finding.kind for finding in judged(*states)] == [HANG]
    assert not judged(*states, engines_work=True)
    actor = RankState(7, "rollout", "", ALONE, 0.0, "", 0, "", (), 0.0, "", "R", 0.9, 0.0)
    assert not judged(*states, actor)
    assert not judged(*states, replace(elsewhere(0, cores=0.9), world="rollout"))
    assert judged(*states, replace(actor, cores=0.2))


def test_no_word_before_it_is_sure() -> None:
    """One that has just moved, one of which nothing is known, all in one collective that may be large."""
    assert not judged(elsewhere(0), waiting(1, 29), waiting(2, 29))
    assert not judged(waiting(0, 2), waiting(1, 100), waiting(2, 100))
    assert not judged(waiting(1, 100), waiting(2, 100))
    assert not judged(*(waiting(rank, 200) for rank in range(3)))
    [unknown] = judged(waiting(1, 280), waiting(2, 280))
    assert unknown.kind == LONG_WAIT and "rank 0 may be missing, of which nothing is known" in unknown.text
    [together] = judged(*(waiting(rank, 250) for rank in range(3)))
    assert together.text == "nobody is missing: ranks 0-2 have waited 250 s in all_reduce #4 of default_pg"


def test_a_job_that_takes_steps_does_not_hang() -> None:
    """The ranks of an idle server stand in a broadcast while the trainer goes on, or wait for each other."""
    serves = (elsewhere(0), waiting(1, 100), waiting(2, 100))
    crossed = (waiting(0, 100, group="weights", members=(), timeout_s=0.0), waiting(1, 100), waiting(2, 100))
    for states in (serves, crossed):
        assert not stalled({"n1": states}, 30.0, T_NS, clock_still_s=20.0)
        assert stalled({"n1": states}, 30.0, T_NS, clock_still_s=40.0)
    assert judged(*crossed) and not judged(*crossed, engines_work=True)


def test_long_steps_are_looked_at_by_the_timeout() -> None:
    states = (elsewhere(0), waiting(1, 160), waiting(2, 160))
    assert judged(*states, suspect_s=1800.0), "a quarter of 600 s"
    assert not judged(elsewhere(0), waiting(1, 140), waiting(2, 140), suspect_s=1800.0)


def test_what_is_suspicious_is_learnt_from_the_phase_and_the_hang_is_told_once() -> None:
    view = JobView("1", ["n1"])
    assert view.suspect_s == 300
    for told in healthy(6, 30):
        findings(view, told)
    end = told[0].begin_ns + int(told[0].seconds * 1e9)
    now = Now(31, end, end + 10**9, 0, 1, 7, True, "generation", "driver")
    states = (elsewhere(0), waiting(1, 31), waiting(2, 31))
    view.take(news([], now=(now,), ranks=states))
    assert view.suspect_s == 30, "three times 8 s"
    [finding] = view.look(end + 40 * 10**9)
    assert finding.kind == HANG and finding.step == 31
    assert not view.look(end + 41 * 10**9)
    assert not view.look(end + 2000 * 10**9), "nor by the step clock"


def test_the_step_clock_may_stand_while_somebody_works() -> None:
    """A checkpoint, an evaluation: no collective is open, and the process or a server moves."""
    view = JobView("1", ["n1"])
    for told in healthy(6, 30):
        findings(view, told)
    end = told[0].begin_ns + int(told[0].seconds * 1e9)
    now = Now(31, end, end + 10**9, 0, 1, 7, True, "save_checkpoint", "driver")
    writes = replace(elsewhere(ALONE, mib_s=300.0), world="")
    tokens = EngineSample("http://127.0.0.1:1/metrics", 3, 0, 0, 0, 50.0, 0.0)
    for more in ({"ranks": (writes,)}, {"engines": (tokens,)}):
        view.take(news([], now=(now,), **more))
        assert not view.look(end + 400 * 10**9), more
    assert view.look(end + 1802 * 10**9)[0].text.startswith("the step clock stands still")


def in_generation(
    view: JobView, engines: tuple[EngineSample, ...] = (), phase: str = "generation", **more: Any
) -> int:
    """30 healthy steps, then one whose generation, or `phase`, does not end; when it began (Unix ns)."""
    for told in healthy(6, 30):
        findings(view, told)
    end = told[0].begin_ns + int(told[0].seconds * 1e9)
    now = Now(31, end, end + 10**9, 0, 1, 7, True, phase, "driver")
    serves = Now(0, 0, 0, 2, 3, 8000, False, "", "rollout")
    view.take(news([], now=(now, serves), engines=engines, **more))
    return end


STANDS = EngineSample("http://127.0.0.1:1/metrics", 3, 2, 0, 0, 0.0, 0.0, 8000, 44.0, 0.01)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({}, "has 3 requests running and 2 requests waiting and made no token for 44.0 s"),
        (
            {"stopped": 8001, "running": 0, "waiting": 0},
            "has made no token for 44.0 s: its process 8001 is stopped (SIGSTOP)",
        ),
        (
            {"silent": 1, "running": 1, "waiting": 0},
            "has 1 request running and made no token for 44.0 s: its metrics do not answer",
        ),
    ],
)
def test_a_server_whose_engine_stands_is_what_the_driver_waits_for(
    changes: dict[str, Any], said: str
) -> None:
    view = JobView("1", ["n1"])
    end = in_generation(view, (replace(STANDS, **changes),))
    assert not view.look(end + 28 * 10**9), "three times the phase, and 30 s"
    [finding] = view.look(end + 46 * 10**9)
    who = "the driver waits for generation of rollout 2 (node n1, pid 8000), whose engine "
    still = "; the step clock stands still for 45.0 s at step 31, in generation"
    assert (finding.kind, finding.text) == (HANG, who + said + still)
    assert not view.look(end + 400 * 10**9), "said once"


def test_the_phase_that_is_open_is_the_one_that_waits() -> None:
    view = JobView("1", ["n1"])
    end = in_generation(view, (replace(STANDS, stopped=8001),), "update_weights")
    said = [finding.text for at_s in range(30, 400, 5) for finding in view.look(end + at_s * 10**9)]
    [text] = said
    assert text.startswith(
        "the driver waits in update_weights for rollout 2 (node n1, pid 8000), whose engine "
    )
    assert text.endswith(", in update_weights")


@pytest.mark.parametrize(
    "changes",
    [
        {"cores": 0.9},
        {"idle_s": 3.0},
        {"running": 0, "waiting": 0},
        {"tokens_s": 20.0, "idle_s": 0.0},
    ],
)
def test_a_server_that_works_or_has_nothing_to_do_is_no_hang(changes: dict[str, float]) -> None:
    view = JobView("1", ["n1"])
    end = in_generation(view, (replace(STANDS, **changes),))
    assert not view.look(end + 120 * 10**9)


def test_an_actor_that_ray_never_places_is_what_the_driver_waits_for() -> None:
    view = JobView("1", ["n1"])
    view.take_unmet("an actor or task asks for 8 CPU, and no node has that (the largest has 2 CPU)")
    end = in_generation(view)
    [finding] = view.look(end + 46 * 10**9)
    assert finding.text == (
        "the driver waits: an actor or task asks for 8 CPU, and no node has that (the largest has 2 CPU);"
        " the step clock stands still for 45.0 s at step 31, in generation"
    )
    again = JobView("1", ["n1"])
    again.take_unmet("an actor or task asks for 8 CPU")
    again.take_unmet("")
    assert not again.look(in_generation(again) + 46 * 10**9)


def test_a_capture_of_hangs_keeps_to_its_own_time() -> None:
    when = When(hang_s=60.0)
    trigger = Trigger(1, CaptureSpec(backend="torch", when=when), when)
    [early] = judged(elsewhere(0), waiting(1, 40), waiting(2, 40))
    [late] = judged(elsewhere(0), waiting(1, 70), waiting(2, 70))
    assert trigger.on_finding(early, (0, 1, 2), int) is None
    assert trigger.on_finding(late, (0, 1, 2), int) is not None


@pytest.mark.parametrize("by", ["collective", "clock"])
@pytest.mark.parametrize("wanted", ["say", "dump", "end"])
def test_what_follows_a_hang(by: str, wanted: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The job ends where the hang stands 60 s later, and is told so once."""
    monkeypatch.setenv("RLPROF_ON_HANG", wanted)
    told: list[dict[str, Any]] = []
    head = head_recorder.HeadRecorder(
        pinned_run(tmp_path, tmp_path), "1", ["n1"], ProfileRequest(), told.append
    )
    for rows in healthy(6, 30):
        head.take(news(rows))
    end = rows[0].begin_ns + int(rows[0].seconds * 1e9)
    now = Now(31, end, end + 10**9, 0, 1, 7, True, "generation", "driver")
    states = (elsewhere(0), waiting(1, 200), waiting(2, 200)) if by == "collective" else ()

    def look(second: float, **more: Any) -> list[str]:
        told.clear()
        clock = SimpleNamespace(time_ns=lambda: end + int(second * 1e9), monotonic=lambda: second)
        monkeypatch.setattr(head_recorder, "time", clock)
        head.take(news([], now=(now,), **more))
        head.look()
        monkeypatch.setattr(head_recorder, "time", time)
        return [kind for each in told for kind in each]

    found = ["finding", *(["capture", "capture"] if wanted != "say" else [])]
    assert look(400, ranks=states) == found
    assert look(450, ranks=states) == []
    tokens = EngineSample("http://127.0.0.1:1/metrics", 3, 0, 0, 0, 50.0, 0.0)
    assert look(451, ranks=states, engines=(tokens,)) == [], "somebody works: it is over"
    assert look(452, ranks=states) == look(511, ranks=states) == []
    assert look(512, ranks=states) == (["end"] if wanted == "end" else [])
    assert look(600, ranks=states) == []
    head.close(10)
