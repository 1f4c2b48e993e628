"""Threads of ours in a program that joins all of its own, or blocks signals and waits for them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from tests.waits import wait_until

from rlprof_ops.host.threads import own_thread
from rlprof_ops.host.threads.own_thread import OwnThread
from rlprof_ops.request import request_from_dict

BLOCKED = "import signal; print(sorted(map(int, signal.pthread_sigmask(signal.SIG_BLOCK, ()))))"
WATCHED = """
import os, signal, threading, time
from rlprof_ops.runtime import profiler
prof = profiler.from_env()
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
with prof.step(1):
    with prof.range("train"):
        time.sleep(0.3)
        os.kill(os.getpid(), signal.SIGUSR1)
        found = threading.enumerate()
    for thread in found:
        if thread is not threading.main_thread():
            thread.join()
prof.close()
print([thread.name for thread in (*found, *threading.enumerate())])
print(signal.sigtimedwait({signal.SIGUSR1}, 1) is not None)
"""


def new_since(before: list[threading.Thread]) -> set[threading.Thread]:
    """Those that are listed now alone; one of an earlier test may end meanwhile."""
    return set(threading.enumerate()) - set(before)


def test_it_is_not_listed_and_can_be_joined() -> None:
    go_on, seen = threading.Event(), []
    thread = OwnThread(lambda *given: seen.append((given, go_on.wait(30))), 1, 2)
    assert not thread.is_alive()
    before = threading.enumerate()
    thread.start()
    thread.join(0.01)
    assert thread.is_alive() and not new_since(before)
    go_on.set()
    thread.join(30)
    assert not thread.is_alive() and seen == [((1, 2), True)]


def test_one_that_asks_for_the_current_thread_is_listed_no_longer_than_it_works() -> None:
    before = threading.enumerate()
    OwnThread(threading.current_thread).start().join(30)
    assert not new_since(before)


def test_an_error_in_it_is_said_once(capsys: pytest.CaptureFixture[str]) -> None:
    thread = OwnThread(int, "x").start()
    thread.join(30)
    assert not thread.is_alive()
    assert "a thread of ours ended: ValueError: invalid literal" in capsys.readouterr().err


def test_where_none_can_be_started(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object) -> int:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(own_thread._thread, "start_new_thread", refused)
    thread = OwnThread(print)
    with pytest.raises(RuntimeError):
        thread.start()
    assert not thread.is_alive() and signal.pthread_sigmask(signal.SIG_BLOCK, ()) == set()


def test_it_takes_no_signal_and_its_commands_have_what_the_program_has_blocked() -> None:
    masks: list[list[int]] = []

    def look() -> None:
        masks.append(sorted(map(int, signal.pthread_sigmask(signal.SIG_BLOCK, ()))))
        with own_thread.signals_for_a_child():
            masks.append(json.loads(subprocess.check_output([sys.executable, "-c", BLOCKED])))
        masks.append(sorted(map(int, signal.pthread_sigmask(signal.SIG_BLOCK, ()))))

    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR2})
    try:
        OwnThread(lambda: OwnThread(look).start().join(30)).start().join(60)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    assert {signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2} < set(masks[0])
    assert not own_thread._FAULTS & set(masks[0])
    assert masks[1] == [signal.SIGUSR2] and masks[2] == masks[0]


def test_in_a_forked_child_it_does_not_work() -> None:
    go_on = threading.Event()
    thread = OwnThread(go_on.wait, 30).start()
    child = os.fork()
    if not child:
        os._exit(thread.is_alive())
    assert os.waitpid(child, 0)[1] == 0
    go_on.set()
    wait_until(lambda: not thread.is_alive(), seconds=30)


@pytest.mark.whole
@pytest.mark.parametrize(
    "capture",
    [
        {},
        {"backend": "torch"},
        {"backend": "torch", "options": {"max_mb": "100"}},
        {"backend": "torch", "at": "train"},
        {"backend": "memory", "options": {"host": "true"}},
        {"backend": "memory", "options": {"host": "true"}, "at": "train"},
    ],
    ids=lambda capture: " ".join(map(str, capture.values())) or "recorded",
)
def test_a_program_that_joins_all_threads_and_waits_for_a_signal(
    capture: dict[str, object], tmp_path: Path
) -> None:
    env = {name: value for name, value in os.environ.items() if not name.startswith("RLPROF_")}
    env |= {"RLPROF_NODE_DIR": str(tmp_path), "RLPROF_RUN_DIR": str(tmp_path / "run")}
    env |= {"PYTHONPATH": os.pathsep.join(sys.path), "RLPROF_ON_DEMAND": "1", "RLPROF_RECORD": "1"}
    env |= {"RLPROF_WORKER": "policy", "RLPROF_RANK": "0"}
    if capture:
        pytest.importorskip("torch")
        asked = {"workers": "policy", "steps": "1:2", **capture}
        env["RLPROF_REQUEST_JSON"] = request_from_dict(
            {"captures": [asked], "output_dir": str(tmp_path / "copies")}
        ).to_json()
    done = subprocess.run(
        [sys.executable, "-c", WATCHED], env=env, capture_output=True, text=True, timeout=240, check=False
    )
    assert done.stdout.splitlines() == ["['MainThread', 'MainThread']", "True"], done.stderr
    assert len([*(tmp_path / "copies").rglob("policy*.*")]) == bool(capture), done.stderr
