"""Steps of real trainers: callbacks, phases, threads, forks, signals."""

import contextlib
import os
import signal
import threading

import pytest

from rlprof_ops.runtime import profiler
from rlprof_ops.runtime.follower import Follower
from rlprof_ops.runtime.leader import Leader
from rlprof_ops.runtime.process.event_log import EventLog


def test_callbacks_may_come_twice_or_not_at_all(recorder, events):
    prof, fake = recorder(steps="3:5")

    for step in (2, 3):
        assert prof.start_step(step) is True
        if step == 3:
            assert prof.start_step(step) is False
    prof.start_step(4)  # 3 was never stopped
    prof.stop_step()
    prof.stop_step()
    prof.start_step(5)
    prof.close()
    prof.close()

    assert " ".join(fake.log) == "[ +step 3 -step 3 +step 4 -step 4 ]"
    (closed,) = events("closed")
    assert closed["partial"] is False and closed["seen"] == [3, 4]
    assert len(events("ended")) == 1


def test_a_step_inside_the_same_step_changes_nothing(recorder):
    prof, fake = recorder(steps="3")

    with prof.step(3):
        with prof.step(3), prof.range("a"):
            pass
        with prof.range("b"):
            pass

    assert " ".join(fake.log) == "[ +step 3 +a -a +b -b -step 3 ]"


def test_a_step_inside_the_same_step_changes_nothing_for_who_leads(recorder, events, tmp_path):
    """Far from any window: a trainer's callback around `with prof.step(n)` of the program."""
    prof, _ = recorder(steps="90")
    prof.tell(Leader(EventLog(tmp_path / "node/events/driver.jsonl"), None))

    assert prof.start_step(1)
    with prof.range("generation"):
        pass
    with prof.step(1), prof.range("logprob"):
        pass
    with prof.range("train"):
        pass
    prof.stop_step(1)
    assert prof.start_step(2) and not prof.start_step(2)
    prof.stop_step(2)

    first, second = events("step")
    assert [name for name, *_ in first["phases"]] == ["generation", "logprob", "train"]
    assert second["step"] == 2


def test_a_resumed_run_takes_what_is_left_of_its_window(recorder, events):
    prof, _ = recorder(steps="3:6")

    for step in (5, 6):
        with prof.step(step):
            pass

    (closed,) = events("closed")
    assert closed["partial"] is True and closed["seen"] == [5] and closed["steps"] == [3, 6]


def test_an_open_window_ends_with_training_and_is_whole(recorder, events):
    prof, fake = recorder(steps="3:")

    for step in (1, 2, 3, 4):
        with prof.step(step):
            pass
    prof.close()

    (closed,) = events("closed")
    assert closed["partial"] is False and closed["report"].startswith("policy_worker_rank0_step3-end_n1_")
    assert fake.log.count("[") == 1


def test_an_exception_that_the_trainer_survives_costs_only_its_window(recorder, events):
    prof, fake = recorder(steps="3:5,7")

    for step in range(1, 9):
        try:
            with prof.step(step):
                if step == 3:
                    raise ValueError
        except ValueError:
            pass

    assert [event["partial"] for event in events("closed")] == [True, False]
    assert " ".join(fake.log) == "[ +step 3 -step 3 ] [ +step 7 -step 7 ]"


def test_phases_are_windows_of_their_own(recorder, events):
    prof, fake = recorder(steps="3:5", each="phase")

    for step in (2, 3, 4, 5):
        with prof.step(step):
            with prof.range("generation"), prof.range("decode"):
                pass
            with prof.range("train"):
                pass
            with prof.range("train"):  # again: one report a phase and step
                pass
    prof.close()

    assert [(event["steps"], event["phase"], event["partial"]) for event in events("closed")] == [
        ([3, 4], "generation", False),
        ([3, 4], "train", False),
        ([4, 5], "generation", False),
        ([4, 5], "train", False),
    ]
    assert events("closed")[0]["report"].split("_n1_")[0] == "policy_worker_rank0_step3-3_generation"
    assert " ".join(fake.log[:9]) == "[ +step 3 +generation +decode -decode -generation -step 3 ] ["


def test_a_phase_that_fails_is_partial(recorder, events):
    prof, _ = recorder(steps="3", each="phase")

    with pytest.raises(ValueError), prof.step(3), prof.range("train"):
        raise ValueError

    assert [event["partial"] for event in events("closed")] == [True]


def test_asking_twice_gives_the_same_profiler(recorder):
    prof, _ = recorder()

    assert profiler.from_env(worker="policy_worker", rank=0) is prof
    assert profiler.from_env(worker="policy_worker", rank=1) is not prof


def test_threads_share_a_profiler(recorder, events):
    prof, fake = recorder(steps="3:5")
    steps = range(1, 8)
    barrier = threading.Barrier(4)

    def work():
        for step in steps:
            barrier.wait(timeout=60)
            prof.start_step(step)
            with prof.range("train"):
                pass
            barrier.wait(timeout=60)
            prof.stop_step(step)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)

    assert [event["seen"] for event in events("closed")] == [[3, 4]]
    assert fake.log.count("[") == fake.log.count("]") == 1
    assert fake.log.count("+train") == fake.log.count("-train") == 8
    assert fake.log.count("+step 3") == fake.log.count("-step 3") == 1


def test_a_forked_child_leaves_the_window_to_its_parent(recorder, events):
    prof, fake = recorder(steps="3:5")
    prof.start_step(3)

    child = os.fork()
    if child == 0:
        try:
            prof.start_step(4)
            with prof.range("in the child"):
                pass
            prof.stop_step(4)
            prof.close()
        finally:
            os._exit(len(fake.log))
    _, status = os.waitpid(child, 0)

    assert os.waitstatus_to_exitcode(status) == len(fake.log) == 2
    assert events("closed") == []
    assert int.from_bytes(next(prof.place.events.glob("*.step")).read_bytes(), "little") == 3
    prof.close()
    assert len(events("closed")) == 1


def end_soon():
    """Kill this process, a child, by SIGALRM if it hangs."""
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.alarm(60)


def forked(inside):
    """How a child ends that is forked in `with inside:` and leaves that."""
    child = 0
    try:
        with inside:
            child = os.fork()
            if child == 0:
                end_soon()
                raise SystemExit
            _, status = os.waitpid(child, 0)
    except SystemExit:
        os._exit(0)
    return os.waitstatus_to_exitcode(status)


@contextlib.contextmanager
def held_elsewhere(lock):
    """`lock` is another thread's in this block."""
    held, over = threading.Event(), threading.Event()

    def hold():
        with lock:
            held.set()
            over.wait(timeout=30)

    threading.Thread(target=hold, daemon=True).start()
    held.wait(timeout=30)
    yield
    over.set()


def test_a_child_forked_in_a_phase_leaves_its_window_to_the_parent(recorder, events):
    prof, _ = recorder(steps="3", each="phase")
    with prof.step(3):
        assert forked(prof.range("rollout")) == 0
        assert len(events("closed")) == 1  # by the parent, since
    prof.close()

    (closed,) = events("closed")
    assert closed["partial"] is False and events("failed") == []


@pytest.mark.parametrize("inside", ["range", "step", "task"])
def test_a_child_forked_beside_a_thread_that_holds_a_lock(inside, recorder):
    prof, _ = recorder(metrics=True, steps="3:", each="phase")
    follower = Follower(prof, None, None)
    context = {"range": prof.range("rollout"), "step": prof.step(3), "task": follower.task("rollout")}[inside]
    locks = {"range": prof._metrics._lock, "step": prof._lock, "task": follower._lock}

    with context, held_elsewhere(locks[inside]):
        child = os.fork()
        if child == 0:
            end_soon()
            context.__exit__(None, None, None)
            os._exit(0)
        _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0


def test_sigterm_while_a_report_is_written_waits_for_it(recorder, events):
    got = []
    previous = signal.signal(signal.SIGTERM, lambda *_: got.append("trainer's own handler"))
    try:
        prof, fake = recorder(steps="3")
        close = fake.close

        def slow_close():
            os.kill(os.getpid(), signal.SIGTERM)
            for _ in range(1000):  # bytecodes in which the handler runs
                pass
            got.append("report written")
            return close()

        fake.close = slow_close
        with prof.step(3):
            pass
    finally:
        signal.signal(signal.SIGTERM, previous)

    assert got == ["report written", "trainer's own handler"]
    assert len(events("closed")) == len(events("ended")) == 1


def test_the_signal_handler_is_there_while_a_window_is_open(recorder):
    before = signal.getsignal(signal.SIGTERM)

    prof, _ = recorder(steps="3,5")
    there = []
    for step in range(1, 7):
        with prof.step(step):
            there.append(signal.getsignal(signal.SIGTERM) != before)
        assert signal.getsignal(signal.SIGTERM) == before
    prof.close()

    assert there == [False, False, True, False, True, False]
    assert signal.getsignal(signal.SIGTERM) == before


def test_the_signal_handler_stays_until_the_report_is_written(recorder):
    before = signal.getsignal(signal.SIGTERM)
    prof, fake = recorder(steps="3")
    may_end = threading.Event()

    class Writing:
        def __init__(self, path):
            self.path = path

        def wait(self):
            may_end.wait(30)
            return self.path

    close = fake.close
    fake.close = lambda: Writing(close())
    with prof.step(3):
        pass
    with prof.step(4):
        assert signal.getsignal(signal.SIGTERM) != before
    may_end.set()
    prof._captures.finish()
    with prof.step(5):
        assert signal.getsignal(signal.SIGTERM) == before


@pytest.mark.parametrize("change", [True, False])
def test_a_window_of_another_thread_has_the_handler_of_the_main_one(recorder, change):
    before = signal.getsignal(signal.SIGTERM)
    prof, _ = recorder(steps="3")

    def train():
        prof.start_step(3)
        if not change:
            prof.stop_step(3)

    thread = threading.Thread(target=train)
    thread.start()
    thread.join()
    for _ in range(1000):  # bytecodes in which the handler is put there
        pass
    assert (signal.getsignal(signal.SIGTERM) != before) is change
    prof.close()
    assert signal.getsignal(signal.SIGTERM) == before
