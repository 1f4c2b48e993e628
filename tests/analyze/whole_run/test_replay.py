"""What a change of the queue would have saved, against engines that are run again with that change."""

from __future__ import annotations

from pathlib import Path
from statistics import fmean

import pytest

np = pytest.importorskip("numpy")
pytest.importorskip("msgspec")

from tests.analyze.whole_run.dealt_requests import Dealt, dealt, steps  # noqa: E402
from tests.analyze.whole_run.real_queue import Asked, Engine, drawn, limited, served, write_run  # noqa: E402

from rlprof_ops.analyze.whole_run.run_data import QueueChange, QueueReplay  # noqa: E402
from rlprof_ops.analyze.whole_run.section import whole_run  # noqa: E402

Step = list[list[list[Asked]]]  # replica, sample, turn


def replay_of(run: Path) -> QueueReplay:
    found = whole_run(run)
    assert found is not None and found.requests is not None and found.requests.replay is not None
    return found.requests.replay


def change(replay: QueueReplay, kind: str) -> QueueChange:
    """The last one of a kind: of limits the longest."""
    return [each for each in replay.changes if each.kind == kind][-1]


def ends(engines: list[Engine], asked: list[Step]) -> list[float]:
    return [
        max(done[-1] for engine, part in zip(engines, step, strict=True) for _, done in served(engine, part))
        for step in asked
    ]


def dealt_by_least(asked: list[Step], replicas: int) -> list[Step]:
    """All come at once, so that what a replica has left is what it got."""
    found: list[Step] = []
    for step in asked:
        parts: Step = [[] for _ in range(replicas)]
        for sample in (sample for part in step for sample in part):
            parts[min(range(replicas), key=lambda n: sum(s[0].tokens for s in parts[n]))].append(sample)
        found.append(parts)
    return found


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("stats", [True, False])
def test_what_would_be_saved_is_what_is_saved(tmp_path: Path, seed: int, stats: bool) -> None:
    """Two replicas, one with three times the requests, both with more than run at a time."""
    engines = [Engine(slots=48), Engine(slots=48)]
    asked = [[drawn(100 * seed + step, 150), drawn(100 * seed + step + 50, 50)] for step in range(6)]
    measured = write_run(tmp_path, asked, engines, stats)
    found = replay_of(tmp_path)
    assert found.at_a_time == 48 and found.replicas == 2 and found.steps == 6
    assert found.measured_ms == pytest.approx(1e3 * fmean(measured), rel=0.001)
    assert found.error_ms < 0.02 * found.measured_ms
    limit = change(found, "length_limit")
    cut = [[limited(part, limit.value) for part in step] for step in asked]
    truth = {
        "length_limit": ends(engines, cut),
        "balance": ends(engines, dealt_by_least(asked, 2)),
        "replicas": ends([*engines, engines[0]], dealt_by_least(asked, 3)),
    }
    for kind, after in truth.items():
        saved_ms = 1e3 * (fmean(measured) - fmean(after))
        said = change(found, kind)
        within_ms = 2 * said.error_ms + 0.005 * found.measured_ms
        assert said.saves_ms == pytest.approx(saved_ms, abs=within_ms), kind
        assert said.error_ms < 0.05 * found.measured_ms, kind
    tokens = [each.tokens for step in asked for part in step for sample in part for each in sample]
    assert limit.cut == pytest.approx(fmean(each > limit.value for each in tokens), abs=1e-4)
    lost = sum(max(0, each - limit.value) for each in tokens) / sum(tokens)
    assert limit.tokens_lost == pytest.approx(lost, abs=1e-4)


@pytest.mark.parametrize("seed", range(5))
def test_turns_wait_for_the_turn_before(tmp_path: Path, seed: int) -> None:
    engine = Engine(slots=256)
    asked = [[drawn(100 * seed + step, 40, turns=3)] for step in range(4)]
    measured = write_run(tmp_path, asked, [engine])
    found = replay_of(tmp_path)
    assert found.at_a_time is None and found.error_ms < 0.02 * found.measured_ms
    limit = change(found, "length_limit")
    after = ends([engine], [[limited(step[0], limit.value)] for step in asked])
    saved_ms = 1e3 * (fmean(measured) - fmean(after))
    assert limit.saves_ms == pytest.approx(saved_ms, abs=max(2 * found.error_ms, 0.02 * found.measured_ms))
    assert not [each for each in found.changes if each.kind == "balance"]


def test_a_replica_that_is_slow_keeps_its_own_speed(tmp_path: Path) -> None:
    engines = [Engine(), Engine(a_pass=0.025, a_request=0.0005)]
    asked = [[drawn(step, 60, most=300), drawn(step + 50, 60, most=300)] for step in range(4)]
    write_run(tmp_path, asked, engines)
    found = replay_of(tmp_path)
    assert found.error_ms < 0.02 * found.measured_ms


def test_one_long_request_is_gained_by_a_limit_alone(tmp_path: Path) -> None:
    engine = Engine(slots=256)
    few = [[Asked(f"{n}", 1, 0.0, 10, 1000 if n == 0 else 50)] for n in range(100)]
    write_run(tmp_path, [[few], [few]], [engine])
    found = replay_of(tmp_path)
    assert change(found, "length_limit").value == 50 and change(found, "length_limit").share > 0.8
    assert abs(change(found, "replicas").share) < 0.1


def test_requests_without_a_token_or_without_time_are_not_replayed(tmp_path: Path) -> None:
    steps(tmp_path, 1)
    dealt(tmp_path, 0, [Dealt("a", 1, 1.0, 1.0, 0), Dealt("b", 1, 1.0, 1.0, 5)])
    found = whole_run(tmp_path)
    assert found is not None and found.requests is not None and found.requests.replay is None
