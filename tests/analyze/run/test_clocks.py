"""Clocks of hosts: offset and drift from collectives, from probes, through a third host, and when nothing
is known.
"""

from __future__ import annotations

from typing import Any

import pytest

np = pytest.importorskip("numpy")

from rlprof_ops.analyze.metrics.collective_events import CollectiveEvents  # noqa: E402
from rlprof_ops.analyze.run.clocks import RankCollectives, align, probes_of  # noqa: E402

T0 = 1_790_857_026_000_000_000


def member(
    host: str,
    worker: str = "w",
    rank: int = 0,
    offset_ns: int = 0,
    drift_ppm: float = 0.0,
    seconds: int = 60,
    skip: int = 0,
    seed: int = 0,
    numbered: bool = False,
) -> RankCollectives:
    """A rank whose clock reads true + offset + drift; 3 µs jitter and 5 % of ends late by up to 5 ms, as
    on a real node.
    """
    rng = np.random.default_rng(42)
    true = T0 + np.sort(rng.integers(0, seconds * 10**9, 2000))
    own = np.random.default_rng(seed)
    late = np.where(own.random(len(true)) < 0.05, own.integers(0, 5_000_000, len(true)), 0)
    end = true + own.normal(0, 3000, len(true)).astype(np.int64) + late
    read = end + offset_ns + ((end - T0) * drift_ppm / 1e6).astype(np.int64)
    sequence = np.arange(len(read)) if numbered else np.full(len(read), -1)
    return RankCollectives(
        host,
        worker,
        rank,
        (CollectiveEvents("pg/allreduce", True, read[skip:] - 1000, read[skip:], sequence[skip:]),),
    )


@pytest.mark.parametrize("numbered", [False, True])
@pytest.mark.parametrize("skip", [0, 1, 2])
def test_offset_and_drift_are_found_through_jitter_and_outliers(skip: int, numbered: bool) -> None:
    clocks = align(
        [
            member("a", seed=1),
            member("a", rank=1, seed=2),
            member("b", rank=2, offset_ns=123_456_789, drift_ppm=10.0, skip=skip, seed=3, numbered=numbered),
        ],
        ["a", "b"],
    )
    b = clocks.of("b")
    assert b.method == "collectives" and b.drift_ppm == pytest.approx(-10.0, abs=0.2)
    for second in (0, 30, 60):
        true = T0 + second * 10**9
        read = true + 123_456_789 + round(second * 10**9 * 10.0 / 1e6)
        assert abs(b.aligned(read) - true) < 5_000
    assert clocks.residual_ns is not None and 1_000 < clocks.residual_ns < 20_000


def test_a_host_is_reached_through_another() -> None:
    one = [member("a", "w1"), member("a", "w1", 1), member("b", "w1", 2, offset_ns=1_000_000)]
    two = [member("b", "w2", 0, offset_ns=1_000_000), member("c", "w2", 1, offset_ns=-5_000_000)]
    clocks = align([*one, *two], ["a", "b", "c"])
    assert abs(clocks.of("c").aligned(T0 - 5_000_000) - T0) < 10_000


def node(offset_ns: int, error_ns: int = 40_000, drift_ns: int = 0) -> dict[str, Any]:
    entry = {"reference": "head", "error_ns": error_ns, "exchanges": 8}
    return {
        "clock": [
            {**entry, "moment": "start", "at_ns": T0, "offset_ns": offset_ns},
            {**entry, "moment": "end", "at_ns": T0 + 60 * 10**9, "offset_ns": offset_ns + drift_ns},
        ]
    }


def test_probes_serve_where_no_collective_crosses() -> None:
    probes = probes_of(
        {
            "a": node(2_000_000),
            "b": node(-3_000_000, drift_ns=600_000),
            "damaged": {"clock": "?"},
            "none": {"clock": []},
        }
    )
    clocks = align([member("a")], ["a", "b", "head"], probes)
    # b's 3 ms ahead and a's 2 ms behind of the head: b is 5 ms ahead of a
    assert clocks.of("b").method == "probe" and clocks.of("b").aligned(T0) == T0 - 5_000_000
    assert clocks.of("b").aligned(T0 + 60 * 10**9) == T0 + 60 * 10**9 - 4_400_000
    assert clocks.of("head").aligned(T0) == T0 - 2_000_000
    assert clocks.residual_ns == 80_000


def test_probes_overrule_collectives_that_were_none() -> None:
    """Ranges of two groups by one name: 5 ms of lateness would pass for an offset of the clocks."""
    members = [member("a"), member("b", rank=1, offset_ns=5_000_000)]
    told = probes_of({"a": node(0), "b": node(0)})
    clocks = align(members, ["a", "b", "head"], told)
    assert clocks.of("b").method == "probe" and clocks.of("b").aligned(T0) == T0
    agreeing = probes_of({"a": node(0), "b": node(-5_000_000 + 20_000)})
    clocks = align(members, ["a", "b", "head"], agreeing)
    assert (
        clocks.of("b").method == "collectives" and abs(clocks.of("b").aligned(T0 + 5_000_000) - T0) < 10_000
    )


@pytest.mark.parametrize("name", ["at_ns", "offset_ns", "error_ns"])
@pytest.mark.parametrize("value", [10**30, 9 * 10**18, -9 * 10**18, 1e18, True, "5", None])
def test_a_probe_that_no_clock_can_tell_is_none(name: str, value: Any) -> None:
    told = {"at_ns": T0, "offset_ns": 5, "error_ns": 7}
    assert probes_of({"a": {"clock": [told | {name: value}]}}) == {}
    assert probes_of({"a": {"clock": [told | {name: value}, told]}})["a"].offset_ns == 5


def test_a_clock_that_was_set_between_its_probes_is_not_known() -> None:
    assert "a" not in probes_of({"a": node(0, drift_ns=8 * 10**9)})
    assert probes_of({"a": node(0, drift_ns=5 * 10**9)})["a"].drift_ppm == pytest.approx(83_333, abs=1)


def test_nothing_known_is_said_and_one_host_needs_nothing() -> None:
    assert align([member("a"), member("b", "other")], ["a", "b"]).residual_ns is None
    assert align([member("a"), member("a", "other")], ["a"]).residual_ns == 0
    assert align([], []).residual_ns == 0
