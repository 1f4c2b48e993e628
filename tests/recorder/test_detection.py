"""What is found in simulated runs, and what is not."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from rlprof_ops.recorder.detect.anomaly import HANG, MEMORY, SLOW_RANK, SLOW_STEP, THROTTLE, Anomaly
from rlprof_ops.recorder.job_view import JobView
from rlprof_ops.recorder.news import News, read
from rlprof_ops.recorder.samples.gpu import GpuSample
from rlprof_ops.recorder.samples.host_samples import HostSample
from rlprof_ops.recorder.samples.step_marks import ToldStep, WindowMark
from rlprof_ops.runtime.marks import Now
from tests.recorder.simulated import BEGIN_NS, healthy, slower


def news(steps: list[ToldStep], t_ns: int = BEGIN_NS, **more: object) -> News:
    """A line as it comes over the wire."""
    plain = News("n1", t_ns, None, (), (), (), tuple(steps), (), {})
    found = read(replace(plain, **more).to_json())  # type: ignore[arg-type]
    assert found is not None
    return found


def findings(view: JobView, *told: list[ToldStep]) -> list[Anomaly]:
    return [finding for steps in told for finding in view.take(news(steps))]


def test_healthy_runs_trigger_nothing() -> None:
    """20 seeds of 300 noisy steps: at most one false finding in all."""
    false = [
        (seed, finding.text)
        for seed in range(20)
        for finding in findings(JobView("1", ["n1"]), *healthy(seed, 300, ranks=4))
    ]
    assert len(false) <= 1, false


@pytest.mark.parametrize(("ranks", "factor"), [(2, 2.0), (2, 3.0), (4, 1.6), (4, 3.0), (64, 1.6)])
def test_a_slow_rank_is_named_within_four_steps(ranks: int, factor: float) -> None:
    for seed in range(10 if ranks < 64 else 3):
        view = JobView("1", ["n1"])
        named: list[Anomaly] = []
        for told in healthy(seed, 40, ranks):
            step = told[0].step
            named += findings(view, slower(told, 1, "train", factor) if step >= 12 else told)
        slow = [finding for finding in named if finding.kind == SLOW_RANK]
        assert [finding.ranks for finding in slow] == [(1,)], (seed, named)
        assert slow[0].step <= 15 and slow[0].phase == "train"


@pytest.mark.parametrize("factor", [2.0, 3.0])
def test_bursts_make_no_slow_rank(factor: float) -> None:
    """Each rank takes far longer in one step of ten: 20 seeds of 300 steps, of which 19 named somebody."""
    false = []
    for seed in range(20):
        rng, view = random.Random(seed), JobView("1", ["n1"])
        for told in healthy(seed, 300):
            for rank in range(8):
                if rng.random() < 0.1:
                    told = [told[0], *slower(told[1:], rank, "train", factor)]
            false += [seed for finding in findings(view, told) if finding.kind == SLOW_RANK]
    assert len(false) <= 1, false


def test_a_slow_rank_among_bursts_is_named() -> None:
    for seed in range(10):
        rng, view = random.Random(seed), JobView("1", ["n1"])
        named = []
        for told in healthy(seed, 120):
            for rank in range(8):
                if rng.random() < 0.1:
                    told = [told[0], *slower(told[1:], rank, "train", 2.0)]
            named += findings(view, slower(told, 3, "train", 2.5) if told[0].step >= 60 else told)
        slow = [finding for finding in named if finding.kind == SLOW_RANK]
        assert [finding.ranks for finding in slow] == [(3,)] and slow[0].step <= 100


def test_a_slow_step_is_found_once_and_says_which_phase() -> None:
    view = JobView("1", ["n1"])
    found = []
    for told in healthy(3, 120):
        if told[0].step in (60, 61):
            told = [*slower(told[:1], 99, "generation", 3.0), *told[1:]]
        found += findings(view, told)
    assert [(finding.kind, finding.step, finding.phase) for finding in found] == [
        (SLOW_STEP, 60, "generation")
    ]
    assert "step 60 took" in found[0].text and "times the median" in found[0].text


def test_a_rhythm_nobody_has_named_is_learned() -> None:
    view = JobView("1", ["n1"])
    found = []
    for told in healthy(4, 200):
        driver = told[0]
        if driver.step % 20 == 0:
            driver = replace(driver, seconds=driver.seconds + 30)
        found += findings(view, [driver])
    assert [finding.step for finding in found] == [20, 40]


def test_steps_with_an_open_window_prove_nothing() -> None:
    view = JobView("1", ["n1"])
    found = []
    for told in healthy(5, 60):
        begin, end = told[0].begin_ns, told[0].begin_ns + int(told[0].seconds * 1e9)
        if told[0].step == 40:
            opened = WindowMark("opened", begin, "policy_worker", 0, "torch", 40, "")
            closed = replace(opened, event="closed", t_ns=end)
            told = slower(slower(told, 0, "train", 9.0), 0, "generation", 5.0)
            found += view.take(news(told, windows=(opened,)))
            found += view.take(news([], windows=(closed,)))
        else:
            found += findings(view, told)
    assert not found
    assert not view.summary()["windows"]


@pytest.mark.parametrize("end", ["killed", "killed at once", "another process", "node lost", "not known"])
def test_a_window_whose_process_died_in_it_exempts_no_later_step(end: str) -> None:
    """No event closes it: its process is gone, or told by another pid, or its node, or it is too old."""
    view, found = JobView("1", ["n1", "n2"]), []
    for told in healthy(5, 60):
        step, t_ns = told[0].step, told[0].begin_ns + int(told[0].seconds * 1e9)
        t_ns += 3_600 * 10**9 * (end == "not known" and step >= 8)
        told = [replace(each, begin_ns=t_ns - int(each.seconds * 1e9)) for each in told[:1]]
        policy = Now(step, t_ns, t_ns, 3, 8, 103, False, "train", "policy_worker")
        last = {"killed": 8, "killed at once": 5, "node lost": 8}.get(end, 0)
        now: tuple[Now, ...] = (policy,) if step < last else ()
        if end == "another process" and step >= 8:
            now = (replace(policy, pid=203),)
        opened = WindowMark("opened", t_ns, "policy_worker", 3, "torch", 5, "", 103)
        if end != "node lost" or step < 8:
            view.take(replace(news([], t_ns, now=now, windows=(opened,) * (step == 5)), node="n2"))
        if step == 6 and end != "killed at once":
            assert view.summary()["windows"]
        found += view.take(news(slower(told, 99, "generation", 5.0) if step in (6, 50) else told, t_ns))
    assert [(finding.kind, finding.step) for finding in found] == [(SLOW_STEP, 50)]
    assert not view.summary()["windows"] and 3 < len(view.facts) < 60


def test_a_window_stays_open_as_long_as_its_process_lives() -> None:
    view = JobView("1", ["n1"])
    opened = WindowMark("opened", BEGIN_NS, "policy_worker", 3, "torch", 5, "", 103)
    now = Now(5, BEGIN_NS, BEGIN_NS, 3, 8, 103, False, "train", "policy_worker")
    view.take(news([], now=(now,), windows=(opened,)))
    view.take(news([], BEGIN_NS + 9_000 * 10**9, now=(now, replace(now, pid=104))))
    behind = news([], BEGIN_NS - 9_000 * 10**9, now=(now,))  # the clock of its node
    view.take(replace(behind, node="n2", windows=(replace(opened, start=6),)))
    view.take(news([], BEGIN_NS + 9_001 * 10**9, now=(now,)))
    assert [row["start"] for row in view.summary()["windows"]] == [5, 6]


def test_a_step_clock_that_stands_still_is_a_hang() -> None:
    view = JobView("1", ["n1"])
    begin = 0
    for told in healthy(6, 30):
        findings(view, told)
        begin = told[0].begin_ns + int(told[0].seconds * 1e9)
    now = Now(31, begin, begin + 10**9, 0, 1, 7, True, "generation", "driver")
    view.take(news([], now=(now,)))
    assert view.hang_limit_s == 300
    assert not view.look(begin + 290 * 10**9)
    found = view.look(begin + 302 * 10**9)
    assert [finding.kind for finding in found] == [HANG]
    assert found[0].text == "the step clock stands still for 301 s at step 31, in generation"
    assert not view.look(begin + 400 * 10**9), "told once"
    quick = JobView("1", ["n1"], hang_s=20)
    quick.take(news([], now=(now,)))
    assert [finding.kind for finding in quick.look(begin + 22 * 10**9)] == [HANG]


def test_a_throttled_gpu_is_told_once() -> None:
    view = JobView("1", ["n1"])
    found = []
    for second in range(60):
        t_ns = BEGIN_NS + second * 10**9
        found += view.take(news([], t_ns, throttled={3: (1.0, 0x40 | 0x04)} if second > 9 else {}))
    assert [(finding.kind, finding.evidence["gpu"]) for finding in found] == [(THROTTLE, 3)]
    assert found[0].text == "GPU 3 of node n1 is throttled: hardware thermal slowdown"


@pytest.mark.parametrize("grows, expected", [(True, [MEMORY]), (False, [])])
def test_memory_that_grows_to_its_end(grows: bool, expected: list[str]) -> None:
    view = JobView("1", ["n1"])
    found = []
    for second in range(0, 1200, 5):
        used = min(97_000, 60_000 + 35 * second) if grows else 93_000 + second % 50 * 80
        host = HostSample(100, used, 100_000, 0, 0, 0, 0, 0)
        gpu = GpuSample(0, 90, 60, 500, 1900, 76_000, 80_000, 0, 0, 0)
        found += view.take(news([], BEGIN_NS + second * 10**9, host=host, gpus=(gpu,)))
    assert [finding.kind for finding in found] == expected
    if grows:
        assert "GiB a minute and is full in" in found[0].text
