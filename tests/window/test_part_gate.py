"""Windows inside steps: when they open and close, and what is said of those that cannot. Nobody waits."""

from __future__ import annotations

import re
import threading
import time
from types import SimpleNamespace

import pytest
from tests.waits import wait_until

from rlprof_ops.request.step_part import StepPart
from rlprof_ops.request.steps import Window
from rlprof_ops.window import part_gate
from rlprof_ops.window.gate import OpenWindow
from rlprof_ops.window.part_gate import PartGate

BUSY = "while the profiler was still busy with the window of step 1: leave steps between them"
_LENGTH = re.compile(r"after [0-9.]+ (ns|µs|ms|s)\b")


class Clock:
    """Stands in for the gate's clock: only a test lets time go on."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_s = 100.0
        monkeypatch.setattr(part_gate, "time", SimpleNamespace(monotonic=lambda: self.now_s))


class Profiled:
    """A gate with a profiler that takes `opening_s` to begin, and until `may_open` is set."""

    def __init__(
        self, part: StepPart, opening_s: float = 0.0, steps: int = 3, at_ranges: bool = False
    ) -> None:
        self.told: list[str] = []
        self.closed: list[OpenWindow] = []
        self.may_open = threading.Event()
        self.may_open.set()
        self._opening_s = opening_s
        windows = [Window(step, step + 1) for step in range(1, steps)]
        self.gate = PartGate(windows, part, lambda: 0.0, self._open, self._close, self._missed, at_ranges)

    def _open(self, window: OpenWindow) -> None:
        time.sleep(self._opening_s)
        assert self.may_open.wait(60)
        window.opened_s = time.monotonic()
        self.told.append("opened")

    def _close(self, window: OpenWindow, partial: bool) -> None:
        window.closed_s = time.monotonic()
        self.closed.append(window)
        self.told.append(f"closed{' partial' if partial else ''} {window.note}".strip())

    def _missed(self, window: OpenWindow, reason: str) -> None:
        self.told.append(reason)


def test_a_window_opens_and_closes_at_its_time() -> None:
    profiled = Profiled(StepPart(0.2, None, 0.3))
    profiled.gate.enter(1)
    assert profiled.gate.waiting and not profiled.told
    wait_until(lambda: profiled.closed, seconds=30)
    opened_s, closed_s = profiled.closed[0].taken_s
    assert opened_s >= 0.2 and closed_s >= 0.5 and not profiled.closed[0].note
    profiled.gate.leave(1)
    profiled.gate.enter(3)  # not asked for
    profiled.gate.enter(1)  # once more
    assert profiled.told == ["opened", "closed"] and not profiled.gate.waiting


def test_how_early_a_window_opens_is_asked_when_it_is_to() -> None:
    profiled = Profiled(StepPart(3.0, None, 0.1))
    asked_s: list[float] = []

    def lead_s() -> float:
        asked_s.append(time.monotonic())
        return 1.5

    profiled.gate.lead_s = lead_s
    began_s = time.monotonic()
    profiled.gate.enter(1)
    wait_until(lambda: profiled.closed, seconds=30)
    assert len(asked_s) == 1 and asked_s[0] >= began_s + 0.9
    assert profiled.closed[0].taken_s[0] >= 1.4
    profiled.gate.leave(1)


def test_a_window_counts_from_the_first_begin_of_its_phase() -> None:
    profiled = Profiled(StepPart(0.0, "train", 0.1))
    profiled.gate.enter(1)
    profiled.gate.begin_phase("generation")
    profiled.gate.begin_phase("train", step=2)  # heard before its step: another one's
    assert not profiled.told
    begun_s = time.monotonic()
    profiled.gate.begin_phase("train")
    profiled.gate.begin_phase("train")
    wait_until(lambda: profiled.closed, seconds=30)
    assert profiled.told == ["opened", "closed"]
    assert profiled.closed[0].counted_from_s >= begun_s
    profiled.gate.leave(1)


@pytest.mark.parametrize("at_ranges", [False, True])
def test_a_window_from_one_token_to_another(at_ranges: bool) -> None:
    profiled = Profiled(StepPart(tokens=(20, 30)), at_ranges=at_ranges)
    profiled.gate.enter(1)
    profiled.gate.begin_phase("token 20")
    profiled.gate.visit()
    wait_until(lambda: profiled.told, seconds=30)
    assert profiled.told == ["opened"]
    profiled.gate.begin_phase("token 30")
    profiled.gate.visit()
    wait_until(lambda: profiled.closed, seconds=30)
    profiled.gate.leave(1)
    assert profiled.told == ["opened", "closed"]


@pytest.mark.parametrize("at_ranges", [False, True])
def test_a_step_that_ends_before_the_last_token(at_ranges: bool) -> None:
    profiled = Profiled(StepPart(tokens=(20, 30)), at_ranges=at_ranges)
    profiled.gate.enter(1)
    profiled.gate.begin_phase("token 20")
    profiled.gate.visit()
    wait_until(lambda: profiled.told, seconds=30)
    profiled.gate.leave(1)
    wait_until(lambda: profiled.closed, seconds=30)
    said = _LENGTH.sub("after 0 s", profiled.told[1])
    assert said == "closed partial step 1 ended after 0 s, before token 30: the window closed with it"


def test_a_token_that_comes_while_the_profiler_begins_closes_the_window_too() -> None:
    profiled = Profiled(StepPart(tokens=(20, 30)))
    profiled.may_open.clear()
    profiled.gate.enter(1)
    profiled.gate.begin_phase("token 20")
    profiled.gate.begin_phase("token 30")
    profiled.may_open.set()
    wait_until(lambda: profiled.closed, seconds=30)
    too_late = profiled.closed[0].too_late(time.monotonic(), 0.3, "")
    assert too_late == "token 30 was over, before the profiler recorded: its start took 300 ms"
    profiled.gate.leave(1)


def test_a_signal_that_ends_the_process_while_a_token_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """The handler closes what is open, at any line of the thread that it came to."""
    profiled = Profiled(StepPart(tokens=(20, 30)))
    profiled.gate.enter(1)
    profiled.gate.begin_phase("token 20")
    wait_until(lambda: profiled.told, seconds=30)
    notify, handled, done = threading.Condition.notify_all, [], threading.Lock()

    def signalled(condition: threading.Condition) -> None:
        if threading.get_ident() in handled:
            handled.clear()
            profiled.gate.close(partial=True)
        notify(condition)

    def tell() -> None:
        handled.append(threading.get_ident())
        profiled.gate.begin_phase("token 30")
        done.release()

    done.acquire()
    monkeypatch.setattr(threading.Condition, "notify_all", signalled)
    threading.Thread(target=tell, daemon=True).start()
    assert done.acquire(timeout=10)
    wait_until(lambda: profiled.closed, seconds=30)
    assert [told.split()[0] for told in profiled.told] == ["opened", "closed"]


def test_a_window_that_is_shorter_than_the_profilers_start() -> None:
    profiled = Profiled(StepPart(0.0, None, 0.1), opening_s=0.3)
    profiled.gate.enter(1)
    wait_until(lambda: profiled.closed, seconds=30)
    too_late = profiled.closed[0].too_late(time.monotonic(), 0.3, "")
    said = "0s+100ms was over, before the profiler recorded: its start took 300 ms; give 'for' more than that"
    assert too_late == said
    profiled.gate.leave(1)


def test_the_rest_of_a_step() -> None:
    profiled = Profiled(StepPart(0.0, None, None))
    profiled.gate.enter(1)
    wait_until(lambda: profiled.told, seconds=30)
    profiled.gate.leave(1)
    profiled.gate.settle()
    assert profiled.told == ["opened", "closed"]


@pytest.mark.parametrize(
    ("part", "said"),
    [
        (StepPart(60.0, None, 1.0), ["step 1 ended after 0 s, before 60s"]),
        (StepPart(60.0, "generation", 1.0), ["step 1 ended after 0 s, before generation+60s"]),
        (
            StepPart(0.0, "generatio", 1.0),
            ["step 1 ended after 0 s, and no phase 'generatio' began in it. Did you mean 'generation'?"],
        ),
        (
            StepPart(done=90.0),
            [
                "step 1 ended after 0 s, and nothing told of 90% of the requests: they are counted in a job,"
                " by the requests of vLLM's engines (V1)"
            ],
        ),
        (StepPart(0.0, "rollout", 1.0), ["step 1 ended after 0 s, and no phase 'rollout' began in it"]),
    ],
)
def test_a_step_that_ends_before_its_window_opens(part: StepPart, said: list[str]) -> None:
    profiled = Profiled(part)
    profiled.gate.enter(1)
    profiled.gate.begin_phase("generation")
    profiled.gate.leave(1)
    profiled.gate.settle()
    assert [_LENGTH.sub("after 0 s", text) for text in profiled.told] == said


def test_a_step_that_ends_before_its_window_closes() -> None:
    profiled = Profiled(StepPart(0.0, "train", 90.0))
    profiled.gate.enter(1)
    profiled.gate.begin_phase("train")
    wait_until(lambda: profiled.told, seconds=30)
    profiled.gate.enter(2)  # nobody has told its end
    wait_until(lambda: profiled.closed, seconds=30)
    assert profiled.told[1].startswith("closed partial step 1 ended after")
    assert profiled.told[1].endswith("s, before train+0s+90s: the window closed with it")
    profiled.gate.leave(2)


def test_training_does_not_wait_for_a_profiler_that_begins() -> None:
    profiled = Profiled(StepPart(0.0, None, 60.0))
    profiled.may_open.clear()
    profiled.gate.enter(1)
    time.sleep(0.1)
    profiled.gate.leave(1)
    profiled.gate.enter(2)
    profiled.gate.leave(2)
    assert not profiled.told
    second = profiled.gate._inside
    assert second is not None
    wait_until(lambda: second._waited_for)
    profiled.may_open.set()
    wait_until(lambda: len(profiled.told) == 3, seconds=30)
    assert _LENGTH.sub("after 0 s", profiled.told[2]) == f"step 2 ended after 0 s, {BUSY}"


def test_the_end_of_a_process_closes_what_is_open_and_ends_what_waits() -> None:
    for after_s, said in ((0.0, "closed partial"), (60.0, "step 1 ended")):
        profiled = Profiled(StepPart(after_s, None, None))
        profiled.gate.enter(1)
        if not after_s:
            wait_until(lambda profiled=profiled: profiled.told, seconds=30)
        profiled.gate.close(partial=True)
        assert profiled.told[-1].startswith(said)
        assert profiled.gate._inside is not None and not profiled.gate._inside.is_busy


def test_a_step_that_began_before_anybody_heard_of_it() -> None:
    profiled = Profiled(StepPart(0.0, None, 1.0))
    profiled.gate.begin_late(1)
    profiled.gate.enter(1)
    assert profiled.told == ["another supervisor took over in step 1, and does not know when it began"]
    assert list(profiled.gate.not_heard(1, 3)) == [Window(2, 3)]


def test_a_profiler_of_the_thread_that_trains_opens_where_a_range_begins_or_ends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = Clock(monkeypatch)
    profiled = Profiled(StepPart(0.1, None, 0.1), at_ranges=True)
    gate = profiled.gate
    gate.enter(1)
    gate.visit()
    assert not profiled.told
    clock.now_s += 0.12
    gate.visit(opens=False)
    assert not profiled.told  # nothing is being done: it waits for the next range
    gate.visit()
    assert profiled.told == ["opened"]
    assert not gate.due
    clock.now_s += 0.1
    assert gate.due
    gate.visit(opens=False)
    gate.visit()
    gate.leave(1)
    assert profiled.told == ["opened", "closed"]


@pytest.mark.parametrize(
    ("part", "said"),
    [
        (
            StepPart(0.0, None, 9.0),
            "closed partial step 1 ended after 0.1 s, before 0s+9s: the window closed with it",
        ),
        (StepPart(60.0, None, 1.0), "step 1 ended after 0.1 s, before 60s"),
        (StepPart(0.0, "train", 1.0), "step 1 ended after 0.1 s, and no phase 'train' began in it"),
        (
            StepPart(0.01, None, 0.02),
            "step 1 ended after 0.1 s, and no range of the thread that trains began or ended between 10ms and"
            " 10ms+20ms",
        ),
    ],
)
def test_why_a_profiler_of_the_thread_that_trains_has_no_window(
    part: StepPart, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock(monkeypatch)
    profiled = Profiled(part, at_ranges=True)
    profiled.gate.enter(1)
    profiled.gate.visit()
    clock.now_s += 0.1
    profiled.gate.leave(1)
    assert _LENGTH.sub("after 0.1 s", profiled.told[-1]) == said
