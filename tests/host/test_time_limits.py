"""A program that gives a sample up by a handler of SIGALRM that raises, as math-verify does, or leaves its
loop by one of the notice before Slurm's time limit.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from rlprof_ops.request import request_from_dict

GIVES_UP = """
import os, signal, sys, time

class GivenUp(TimeoutError):
    pass

def give_up(*_):
    raise GivenUp

"""
LIMITED = """
from rlprof_ops.host.threads.time_limits import time_limits_wait
from rlprof_ops.runtime.process.hooks import safely

LIMIT = signal.Signals[sys.argv[1]]
signal.signal(LIMIT, give_up)
profiles = []
signal.signal(signal.SIGPROF, lambda *_: profiles.append(1))

def ours():
    done.append("begun")
    for number in (LIMIT, signal.SIGPROF, LIMIT):
        signal.raise_signal(number)
    with time_limits_wait():
        signal.raise_signal(LIMIT)
    done.append("ended")

done = []
for run in (ours, lambda: safely("test", ours)):
    try:
        with time_limits_wait():
            run()
    except GivenUp:
        done.append("given up")
try:
    safely("test", ours)
except GivenUp:
    done.append("given up")
print(*done, len(profiles), signal.getsignal(LIMIT) is give_up)
"""
TRAINER = """
from rlprof_ops.runtime import profiler

signal.signal(signal.SIGALRM, give_up)
prof = profiler.from_env(worker="controller", rank=0)
for step in range(1, 5):
    try:
        signal.setitimer(signal.ITIMER_REAL, float(sys.argv[1]))
        with prof.step(step):
            while True:
                time.sleep(0.01)
    except GivenUp:
        print("step", step, "was given up", flush=True)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
prof.close()
"""


NOTICED = """
import torch
from rlprof_ops.runtime import profiler
NOTICE = signal.Signals[sys.argv[1]]
signal.signal(NOTICE, give_up)
prof = profiler.from_env(worker="controller", rank=0)
start = torch.profiler.profile.start

def noticed(profile):
    os.kill(os.getpid(), NOTICE)
    start(profile)

torch.profiler.profile.start = noticed
try:
    for step in range(1, 5):
        with prof.step(step):
            torch.ones(2) + 1
        print("step", step, flush=True)
except GivenUp:
    print("saves a checkpoint", flush=True)
prof.close()
"""


def asked(folder: Path, steps: str, **options: bool) -> dict[str, str]:
    capture = {"backend": "torch", "workers": ["controller"], "steps": steps, "options": options}
    request = request_from_dict({"captures": [capture]}).to_json()
    return {"RLPROF_NODE_DIR": str(folder), "RLPROF_REQUEST_JSON": request}


def events_of(folder: Path) -> list[dict[str, Any]]:
    [log] = (folder / "events").glob("*.jsonl")
    return [json.loads(line) for line in log.read_text().splitlines()]


def run(program: str, *arguments: str, env: dict[str, str]) -> str:
    argv = [sys.executable, "-c", GIVES_UP + program, *arguments]
    plain = {name: value for name, value in os.environ.items() if not name.startswith("RLPROF_")}
    env = {**plain, "PYTHONPATH": os.pathsep.join(sys.path), **env}
    done = subprocess.run(argv, env=env, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("limit", ["SIGALRM", "SIGUSR1", "SIGUSR2", "SIGHUP"])
def test_what_its_handler_raises_comes_when_our_work_is_done(limit: str) -> None:
    once = "begun ended given up"
    assert run(LIMITED, limit, env={}) == f"{once} {once} {once} 3 True\n"


@pytest.mark.whole
@pytest.mark.parametrize("limit_s", [0.02, 0.3])
def test_a_step_that_is_given_up_while_its_window_opens(tmp_path: Path, limit_s: float) -> None:
    pytest.importorskip("torch")
    env = asked(tmp_path, "2:4", with_stack=True)

    watched = run(TRAINER, str(limit_s), env=env)

    assert (
        watched
        == run(TRAINER, str(limit_s), env={})
        == "".join(f"step {n} was given up\n" for n in range(1, 5))
    )
    events = [event["event"] for event in events_of(tmp_path)]
    assert events.count("opened") == events.count("closed") >= 1 and "failed" not in events


@pytest.mark.torch
@pytest.mark.parametrize("notice", ["SIGUSR1", "SIGTERM", "SIGINT"])
def test_the_notice_of_a_time_limit_while_a_window_opens_is_the_programs(tmp_path: Path, notice: str) -> None:
    assert run(NOTICED, notice, env=asked(tmp_path, "2")) == "step 1\nsaves a checkpoint\n"

    events = [event["event"] for event in events_of(tmp_path)]
    assert events.count("opened") == events.count("closed") == 1 and "failed" not in events


GUARDED = """
import json
from types import SimpleNamespace
from rlprof_ops.host.after_import import after_import
from rlprof_ops.runtime import profiler
from rlprof_ops.runtime.ranges.span import end_tokens, start_tokens

signal.signal(signal.SIGALRM, give_up)
alarm = lambda _: signal.raise_signal(signal.SIGALRM)
ok = lambda _: None
begins = SimpleNamespace(kind="nvtx", start=alarm, end=ok)
ends = SimpleNamespace(kind="nvtx", start=ok, end=alarm)
for what, run in {
    "begin": lambda: start_tokens([begins], "a"),
    "end": lambda: end_tokens([(ends, 1)]),
    "install": lambda: after_import("json", alarm),
    "make": lambda: profiler._or_nothing(lambda: alarm(0)),
}.items():
    try:
        run()
    except GivenUp:
        print(what)
"""
OWN_PROFILER = """
import torch
from rlprof_ops.runtime import profiler
signal.signal(signal.SIGALRM, give_up)
prof = profiler.from_env(worker="controller", rank=0)
export = torch.profiler.profile.export_chrome_trace

def slow(*arguments):
    signal.raise_signal(signal.SIGALRM)
    return export(*arguments)

with prof.step(2):
    torch.profiler.profile.export_chrome_trace = slow
    try:
        with torch.profiler.profile():
            print("never")
    except GivenUp:
        print("given up")
    torch.profiler.profile.export_chrome_trace = export
with prof.step(5):
    torch.ones(2) + 1
with torch.profiler.profile() as own:
    torch.ones(2) + 1
print(len(own.events()) > 0)
prof.close()
"""


def test_what_is_given_up_while_a_range_a_profiler_or_an_adapter_begins() -> None:
    assert run(GUARDED, env={}) == "begin\nend\ninstall\nmake\n"


@pytest.mark.torch
def test_a_profiler_of_the_programs_that_is_given_up_does_not_count_as_open(tmp_path: Path) -> None:
    assert run(OWN_PROFILER, env=asked(tmp_path, "2,5")) == "given up\nTrue\n"

    events = events_of(tmp_path)
    closed = [event["steps"] for event in events if event["event"] == "closed"]
    assert closed == [[2, 3], [5, 6]], events


def test_a_child_that_another_thread_forks_meanwhile_has_the_programs_handlers() -> None:
    program = (
        "import os, signal, threading\n"
        "from rlprof_ops.host.threads.time_limits import time_limits_wait\n"
        "told = lambda *_: print('told', flush=True)\n"
        "signal.signal(signal.SIGALRM, told)\n"
        "def fork():\n"
        "    child = os.fork()\n"
        "    if not child:\n"
        "        with time_limits_wait(): pass\n"
        "        os._exit(signal.getsignal(signal.SIGALRM) is told)\n"
        "    seen.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))\n"
        "seen = []\n"
        "with time_limits_wait():\n"
        "    signal.raise_signal(signal.SIGALRM)\n"
        "    seen.append(signal.getsignal(signal.SIGALRM) is told)\n"
        "    thread = threading.Thread(target=fork); thread.start(); thread.join()\n"
        "print(seen, signal.getsignal(signal.SIGALRM) is told)"
    )
    assert run(program, env={}) == "told\n[False, 1] True\n"


def test_what_c_does_at_the_signal_is_the_same_afterwards() -> None:
    """faulthandler's dump before Python's handler, and the flag of `siginterrupt`, which asyncio clears."""
    program = (
        "import ctypes, faulthandler\n"
        "from rlprof_ops.host.threads.time_limits import time_limits_wait\n"
        "def action(number):\n"
        "    found = ctypes.create_string_buffer(256)\n"
        "    assert ctypes.CDLL(None).sigaction(number, None, found) == 0\n"
        "    return found.raw[:16] + found.raw[136:140]\n"  # handler, the mask that the kernel knows, flags
        "for number in (signal.SIGUSR1, signal.SIGTERM): signal.signal(number, print)\n"
        "faulthandler.register(signal.SIGUSR1, chain=True)\n"
        "signal.siginterrupt(signal.SIGTERM, False)\n"
        "numbers = (signal.SIGUSR1, signal.SIGTERM)\n"
        "before = [*map(action, numbers)]\n"
        "with time_limits_wait(): held = [*map(action, numbers)]\n"
        "print([*map(action, numbers)] == before, [one != other for one, other in zip(held, before)])"
    )
    assert run(program, env={}) == "True [True, True]\n"


def test_no_timer_without_a_handler_is_touched() -> None:
    program = (
        "import signal; from rlprof_ops.host.threads.time_limits import time_limits_wait\n"
        "with time_limits_wait(): print(signal.getsignal(signal.SIGALRM) is signal.SIG_DFL)"
    )
    assert run(program, env={}) == "True\n"
    assert signal.getsignal(signal.SIGVTALRM) is signal.SIG_DFL
