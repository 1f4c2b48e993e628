"""SIGTERM in a process whose windows are closed first: who decides what becomes of it then."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from rlprof_ops.host import processes

BEGIN = """
import os, signal
from rlprof_ops.runtime.process import signals
signal.signal(signal.SIGTERM, signal.SIG_DFL)
def act():
    print("windows closed", flush=True)
    return True
def on_top():
    before = signal.getsignal(signal.SIGTERM)
    def handler(number, frame):
        print("the program's own", flush=True)
        before(number, frame)
    signal.signal(signal.SIGTERM, handler)
"""
END = """
os.kill(os.getpid(), signal.SIGTERM)
print("checkpoint saved", flush=True)
"""


def ended(middle: str, stderr: str = "") -> tuple[list[str], int]:
    """What a process printed in which SIGTERM comes after `middle`, and how it ended."""
    done = subprocess.run(
        [sys.executable, "-c", BEGIN + middle + END],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert stderr in done.stderr and (stderr or not done.stderr)
    return done.stdout.splitlines(), done.returncode


@pytest.mark.parametrize("hooks", [1, 2])
def test_with_ours_on_top_the_process_ends_as_it_would_have(hooks: int) -> None:
    lines, code = ended(f"hooks = [signals.on_terminate(act) for _ in range({hooks})]")

    assert lines == ["windows closed"] * hooks and code == -signal.SIGTERM


def test_a_handler_put_on_top_decides() -> None:
    lines, code = ended("hook = signals.on_terminate(act); on_top()")

    assert lines == ["the program's own", "windows closed", "checkpoint saved"] and code == 0


ENDS = (
    "raise SystemExit(128 + number)",
    "signal.signal(number, signal.SIG_DFL); os.kill(os.getpid(), number)",
)


@pytest.mark.parametrize("end", ENDS)
def test_a_handler_with_an_end_of_its_own_where_nothing_was_there_ends_the_process(end: str) -> None:
    """It would have come to its own end without us."""
    handler = f"""
before = signal.getsignal(signal.SIGTERM)
def pass_on(number, frame):
    before(number, frame)
def handler(number, frame):
    if callable(before):
        pass_on(number, frame)
    else:
        {end}
signal.signal(signal.SIGTERM, handler)"""
    lines, code = ended("hook = signals.on_terminate(act)" + handler)

    assert lines == ["windows closed"] and code == -signal.SIGTERM


def test_a_handler_between_two_of_ours_decides() -> None:
    lines, code = ended("first = signals.on_terminate(act); on_top(); second = signals.on_terminate(act)")

    assert lines == ["windows closed", "the program's own", "windows closed", "checkpoint saved"]
    assert code == 0


def test_a_handler_taken_off_again_leaves_it_to_ours() -> None:
    middle = "hook = signals.on_terminate(act); ours = signal.getsignal(signal.SIGTERM); on_top()\n"
    lines, code = ended(middle + "signal.signal(signal.SIGTERM, ours)")  # as Lightning's teardown does

    assert lines == ["windows closed"] and code == -signal.SIGTERM


@pytest.mark.parametrize("on_top", [True, False])
def test_a_signal_held_back_until_a_report_is_in_place_is_decided_alike(on_top: bool) -> None:
    held = "hook = signals.on_terminate(lambda: False)\n" + "on_top()" * on_top
    late = "\nos.kill(os.getpid(), signal.SIGTERM)\nhook.remove()\nhook.deliver()\nos._exit(3)"
    lines, code = ended(held + late)

    assert lines == ["the program's own"] * on_top and code == (3 if on_top else -signal.SIGTERM)


def test_a_handler_taken_off_after_ours_was_removed_leaves_none_of_ours() -> None:
    middle = """
first = signals.on_terminate(act)
ours = signal.getsignal(signal.SIGTERM)
on_top()
first.remove()
signal.signal(signal.SIGTERM, ours)
signals.on_terminate(act).remove()
print(signal.getsignal(signal.SIGTERM) == signal.SIG_DFL, flush=True)"""
    lines, code = ended(middle)

    assert lines == ["True"] and code == -signal.SIGTERM


RANK = """
import datetime, sys, time
import torch, torch.distributed as dist
from rlprof_ops.runtime import profiler

rank = int(sys.argv[2])
limit = datetime.timedelta(seconds=600)
dist.init_process_group("gloo", init_method="file://" + sys.argv[1], rank=rank, world_size=2, timeout=limit)
prof = profiler.from_env(worker="policy_worker", rank=rank)
with prof.step(3):
    torch.ones(8).sum()
    print(type(prof).__name__, flush=True)
    if rank == 1:
        time.sleep(600)  # it never joins
    dist.all_reduce(torch.ones(4))
"""


def told_to_end_in_a_collective(tmp_path: Path) -> tuple[bool, int]:
    """Whether a rank that waits in C code for another one has a handler of SIGTERM, and how it ends."""
    (tmp_path / "rank.py").write_text(RANK)
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    ranks = []
    try:
        for rank in ("0", "1"):
            command = [sys.executable, str(tmp_path / "rank.py"), str(tmp_path / "meet"), rank]
            ranks.append(subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True))
        for process in ranks:
            assert process.stdout is not None and process.stdout.readline() == "Profiler\n"
        time.sleep(1.0)  # the collective begins
        handles = processes.catches(ranks[0].pid, signal.SIGTERM)
        ranks[0].send_signal(signal.SIGTERM)
        return handles, ranks[0].wait(60)
    finally:
        for process in ranks:
            process.kill()
            process.communicate()


@pytest.mark.parametrize("steps", [None, "5:"])
def test_a_rank_in_a_collective_ends_as_without_us(steps, asked, events, tmp_path, monkeypatch) -> None:
    asked(backend="torch", steps=steps or "5:")
    if steps is None:
        monkeypatch.delenv("RLPROF_REQUEST_JSON")
    monkeypatch.setenv("RLPROF_RECORD", "1")

    assert told_to_end_in_a_collective(tmp_path) == (False, -signal.SIGTERM)


def test_a_rank_in_a_collective_saves_its_open_window_and_ends(asked, events, tmp_path) -> None:
    node = asked(backend="torch", steps="3:5")

    assert told_to_end_in_a_collective(tmp_path) == (True, -signal.SIGTERM)

    (closed,) = events("closed")
    assert closed["partial"] is True and closed["seen"] == [3] and (node / closed["path"]).is_file()


IN_C = """
import ctypes, threading, time
usleep = ctypes.CDLL(None).usleep  # in C code, while others run
def told():  # another thread takes the signal: the main one's pause goes on
    signal.pthread_kill(threading.get_ident(), signal.SIGTERM)
timer = threading.Timer(0.5, told)
def pause(us):  # told to end in the first one: what is before has been done by then
    timer.is_alive() or timer.finished.is_set() or timer.start()
    usleep(us)
"""


@pytest.mark.parametrize("busy", ["", ", lambda: True"])
def test_what_does_not_end_keeps_a_process_in_c_code_only_so_long(busy, monkeypatch) -> None:
    """A window that does not close, and a profiler that is started for ever."""
    monkeypatch.setenv("RLPROF_CLOSE_WAIT_SECONDS", "0.2")
    stuck = f"stuck = signals.on_terminate(lambda: threading.Event().wait(){busy})\n"
    lines, code = ended(IN_C + stuck + "pause(20_000_000); os._exit(3)", stderr="windows did not close")

    assert lines == [] and code == -signal.SIGTERM


def test_a_process_in_c_code_is_not_ended_while_a_profiler_is_busy() -> None:
    middle = """
hook = signals.on_terminate(act, lambda: time.monotonic() < until)
until = time.monotonic() + 4
pause(3_000_000)
print(time.monotonic() < until, flush=True)
pause(20_000_000)"""
    lines, code = ended(IN_C + middle)

    assert lines == ["windows closed"] and code == -signal.SIGTERM


def test_a_handler_of_the_programs_own_waits_for_python_as_without_us() -> None:
    middle = "hook = signals.on_terminate(act); on_top()\n"
    lines, code = ended(IN_C + middle + "pause(3_000_000)")

    assert lines[:2] == ["the program's own", "windows closed"] and code == 0


def test_a_signal_of_a_forked_child_does_not_end_its_parent() -> None:
    middle = """
hook = signals.on_terminate(act)
child = os.fork()
if not child:
    os.kill(os.getpid(), signal.SIGTERM)
    os._exit(3)
os.waitpid(child, 0)
time.sleep(2)
hook.remove()
print(signal.set_wakeup_fd(-1), flush=True)
listening = [thread for thread in threading.enumerate() if thread.name == "rlprof-sigterm"]
os._exit(any(thread.join(20) or thread.is_alive() for thread in listening))"""
    lines, code = ended("import threading, time" + middle)

    assert lines == ["windows closed", "-1"] and code == 0


def test_a_wakeup_descriptor_that_was_closed_is_nobodys() -> None:
    middle = """
read, written = os.pipe()
os.set_blocking(written, False)
signal.set_wakeup_fd(written)
os.close(written)
hook = signals.on_terminate(act)
"""
    lines, code = ended(middle + IN_C + "pause(20_000_000)")

    assert lines == ["windows closed"] and code == -signal.SIGTERM


def test_a_wakeup_descriptor_of_the_programs_own_is_left_alone() -> None:
    middle = """
read, written = os.pipe()
os.set_blocking(written, False)
signal.set_wakeup_fd(written)
signal.signal(signal.SIGUSR1, lambda *_: None)
hook = signals.on_terminate(act)
os.kill(os.getpid(), signal.SIGUSR1)
hook.remove()
print(os.read(read, 9) == bytes([signal.SIGUSR1]), signal.set_wakeup_fd(-1) == written, flush=True)
os._exit(0)"""
    lines, code = ended(middle)

    assert lines == ["True True"] and code == 0


def test_a_wakeup_descriptor_of_ours_may_be_put_back_later() -> None:
    middle = """
hook = signals.on_terminate(act)
read, written = os.pipe()
os.set_blocking(written, False)
before = signal.set_wakeup_fd(written)  # as trio does
hook.remove()
print(before != -1, signal.set_wakeup_fd(before) == written, flush=True)
signal.signal(signal.SIGUSR1, lambda *_: None)
os.kill(os.getpid(), signal.SIGUSR1)
"""
    lines, code = ended(middle)

    assert lines == ["True True"] and code == -signal.SIGTERM


CHILDREN = """
import multiprocessing, sys
from rlprof_ops.runtime import profiler

def train(rank):
    global prof
    prof = profiler.from_env(worker="policy_worker", rank=rank)
    for step in range(1, 4):
        with prof.step(step):
            pass

if __name__ == "__main__":
    train(0)
    child = multiprocessing.get_context(sys.argv[1]).Process(target=train, args=(1,))
    child.start()
    child.join(60)
    sys.exit(child.exitcode)
"""


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_an_open_window_of_a_multiprocessing_child_ends_with_it(method, asked, events, tmp_path) -> None:
    asked(backend="memory", steps="2:", options={"host": "true"})
    script = tmp_path / "children.py"
    script.write_text(CHILDREN)
    done = subprocess.run(
        [sys.executable, str(script), method],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert [(event["seen"], event["partial"]) for event in events("closed")] == [([2, 3], False)] * 2
    assert sorted(event["last_step"] for event in events("ended")) == [3, 3]
