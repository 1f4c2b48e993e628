"""A program that profiles itself by torch while we do: its traces are whole, it ends as without us, and ours
says why it yielded. Real torch.profiler.

torch itself ends a process in which two overlap with SIGSEGV, so each case is a process of its own.
"""

import cProfile
import gzip
import json
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import NamedTuple

import pytest

from rlprof_ops.runtime import profiler

pytestmark = pytest.mark.torch

SCRIPT = Path(__file__).with_name("own_profiler.py")
TIMES = int(os.environ.get("RLPROF_TEST_TIMES", "1"))  # of each case; 20 by hand


class Case(NamedTuple):
    """`own`: how often the script worked in each trace of its own. `ours`: the states of our window."""

    order: str
    where: str
    own: tuple[int, ...]
    ours: dict[str, str]
    options: dict[str, str] | None = None


CUT = {"closed": "yielded to a torch.profiler of the program's own, which began in thread"}
YIELDED = {"failed": "yielded to a torch.profiler of the program's own, which thread"}
LATE = {**YIELDED, "closed": "it begins at step 3: until then yielded to a torch.profiler"}
LATER = {**YIELDED, "closed": "it begins at step 4: until then yielded to a torch.profiler"}
LOST = {"failed": "so its trace is lost: set `all_threads: true`"}
ONE_THREAD = {"all_threads": "false"}
SCHEDULED = {"schedule_wait": "0", "schedule_active": "1"}

CASES = (
    [
        case
        for where in ("main", "server")
        for case in (
            Case("os ts tp op", where, (2,), CUT),
            Case("os ts op tp", where, (2 if where == "server" else 4,), CUT),
            Case("ts os tp op", where, (2 if where == "server" else 3,), YIELDED),
            Case("ts os op tp", where, (2 if where == "server" else 5,), YIELDED),
            # a schedule's warm-up
            Case("tr os tb tp op", where, (2,), YIELDED),
            Case("os tr op tb tp", where, (2,), CUT),
            Case("os tr next tb tp op", where, (2,), CUT),
            # theirs has ended: the next step of our window is taken
            Case("ts os tp next next op", where, (2 if where == "server" else 3,), LATE),
            # and where it ends only steps later
            Case("ts os next tp next op", where, (2 if where == "server" else 4,), LATER),
            # twice in one window
            Case("os ts tp next ts tp op", where, (2, 2), CUT),
            # ours has a schedule
            Case("os next ts tp op", where, (2,), CUT, SCHEDULED),
        )
    ]
    + [
        Case("os ts tp op", "main", (2,), CUT, ONE_THREAD),
        Case("os ts tp op", "server", (2,), LOST, ONE_THREAD),
        Case("os ts op tp", "server", (2,), LOST, ONE_THREAD),
        # what ran on for nothing is ended before the thread profiles itself
        Case("os ts tp ms mp op", "server", (2, 2), LOST, ONE_THREAD),
        Case("os ts op tp ms mp", "server", (2, 2), LOST, ONE_THREAD),
        # a forked child has nothing of ours
        Case("os fork op", "main", (), {"closed": ""}),
        Case("os fork op", "main", (), {"closed": ""}, ONE_THREAD),
        Case("os op ts tp", "main", (2,), {"closed": ""}),
    ]
    + [
        # SGLang opens one by the same calls and another set of options; a SGLang needs a GPU. vLLM as it was
        # when a variable switched its profiler on: the installed one has none
        case
        for where in ("sglang", "vllm")
        for case in (
            Case("os ts tp op", where, (2,), CUT),
            Case("os ts op tp", where, (4,), CUT),
            Case("ts os tp op", where, (3,), YIELDED),
            Case("ts os op tp", where, (5,), YIELDED),
            Case("ts os tp next next op", where, (3,), LATE),
            Case("os ts tp next ts tp op", where, (2, 2), CUT),
        )
    ]
)


@pytest.fixture(scope="module")
def ran(tmp_path_factory):
    """All cases in one process with torch loaded, each in forked children; the folder and the exit codes."""
    folder = tmp_path_factory.mktemp("own_profiler")
    done = subprocess.run(
        [sys.executable, str(SCRIPT), str(folder), str(TIMES)],
        input=json.dumps([{**case._asdict(), "options": case.options or {}} for case in CASES]),
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        timeout=120 + 10 * TIMES * len(CASES),
    )
    assert done.returncode == 0, done.stderr
    return folder, json.loads(done.stdout.splitlines()[-1]), done.stderr


def events_of(path):
    packed = path.read_bytes()
    return json.loads(gzip.decompress(packed) if path.suffix == ".gz" else packed)["traceEvents"]


@pytest.mark.parametrize("number", range(len(CASES)), ids=[f"{case.where}: {case.order}" for case in CASES])
def test_the_programs_own_trace_is_whole_and_ours_says_why_it_yielded(ran, number):
    folder, codes, said = ran
    case = CASES[number]
    for attempt in range(TIMES):
        out = folder / f"{number}-{attempt}"
        assert codes[number * TIMES + attempt] == 0, said[-3000:]
        own = [events_of(path) for path in sorted(out.glob("own-*"))]
        matmuls = [sum(event.get("name") == "aten::mm" for event in events) for events in own]
        assert matmuls == [3 * times for times in case.own]  # forward and twice backward
        lines = (
            json.loads(line)
            for path in (out / "node/events").glob("*.jsonl")
            for line in path.read_text().splitlines()
        )
        ended = {row["event"]: row for row in lines if row["event"] in ("closed", "failed")}
        assert ended.keys() == case.ours.keys()
        for event, reason in case.ours.items():
            assert reason in ended[event].get("reason", "")
        if "closed" in ended:
            report = out / "node" / ended["closed"]["path"]
            assert events_of(report)
            assert ended["closed"]["partial"] is True


FORKED = """
import os, sys, torch
from rlprof_ops.runtime import profiler

def held():
    return int(open("/proc/self/statm").read().split()[1]) * os.sysconf("SC_PAGE_SIZE") >> 20

def child():
    before, x = held(), torch.zeros(4)
    for _ in range(50000):
        x = x + 1
    print(held() - before, sys.getprofile(), flush=True)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as own:
        x.sum()
    print(any(event.key == "aten::sum" for event in own.key_averages()), flush=True)
    os._exit(0)

prof = profiler.from_env(worker="policy_worker", rank=0)
with prof.step(2):
    x = torch.ones(4) + 1
    pid = os.fork()
    if not pid:
        child()
    print(os.waitpid(pid, 0)[1])
prof.close()
"""


@pytest.mark.parametrize("options", [{}, {"with_stack": "true"}, {"with_stack": "true", **ONE_THREAD}])
def test_a_process_forked_in_a_window_keeps_nothing_for_it(asked, events, options):
    """As a loader's worker or a reward's: torch's recording went on in it, by 1 KiB an operator."""
    asked(backend="torch", steps="2", options=options)
    done = subprocess.run([sys.executable, "-c", FORKED], capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    grown, own, code = done.stdout.splitlines()
    megabytes, profile = grown.split(" ", 1)
    assert int(megabytes) < 25
    assert (profile, own, code) == ("None", "True", "0")
    assert len(events("closed")) == 1


@pytest.mark.parametrize("ends", [None, 4], ids=["all the time", "until the window's second step"])
@pytest.mark.parametrize("set_profile", [sys.setprofile, threading.setprofile])
def test_stacks_are_not_taken_beside_a_python_profiler(asked, events, set_profile, ends):
    """torch would replace its function, and leave none: cProfile saw nothing more."""
    asked(backend="torch", options={"with_stack": "true"})
    prof = profiler.from_env(worker="policy_worker", rank=0)
    calls, now = [], []

    def count(frame, event, argument):
        calls.append(event)

    get = sys.getprofile if set_profile is sys.setprofile else threading.getprofile
    try:
        set_profile(count)
        for step in range(1, 6):
            if step == ends:
                set_profile(None)
            with prof.step(step):
                now.append(get() is count)
    finally:
        set_profile(None)
    prof.close()

    assert now == [ends is None or step < ends for step in range(1, 6)]
    (failed,) = events("failed")
    assert failed["reason"].startswith("yielded to a Python profiler of the program's own")
    closed = [event["reason"] for event in events("closed")]
    assert [reason[:40] for reason in closed] == (
        ["it begins at step 4: until then yielded "] if ends else []
    )


def test_other_windows_are_taken_beside_a_python_profiler(asked, events):
    asked(backend="torch", options={"record_shapes": "true"})
    prof = profiler.from_env(worker="policy_worker", rank=0)
    own = cProfile.Profile()
    own.enable()
    for step in range(1, 6):
        with prof.step(step):
            pass
    own.disable()
    prof.close()
    assert len(events("closed")) == 1
