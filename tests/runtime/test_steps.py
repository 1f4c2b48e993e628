"""Steps of real trainers: callbacks, phases, threads, forks, signals."""

import os
import signal
import threading

import pytest

from rlprof_ops.runtime import profiler


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
            barrier.wait(timeout=20)
            prof.start_step(step)
            with prof.range("train"):
                pass
            barrier.wait(timeout=20)
            prof.stop_step(step)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=30)

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


def test_closing_gives_the_signal_handler_back(recorder):
    before = signal.getsignal(signal.SIGTERM)

    prof, _ = recorder()
    assert signal.getsignal(signal.SIGTERM) != before
    prof.close()

    assert signal.getsignal(signal.SIGTERM) == before
