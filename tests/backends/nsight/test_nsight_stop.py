"""`nsys stop` beside the training: the next step begins when nothing more enters the report, and its end
is waited for once.
"""

import os
import subprocess
import sys
import time

import pytest
from tests.nsys_stand_in import answering_nsys
from tests.real_nsys import nvtx_ranges

from rlprof_ops.backends.nsight.nsys_wrap import NsysCommand
from rlprof_ops.backends.option_trial import BAD_LUCK


def test_a_report_is_written_while_training_goes_on(asked, events, monkeypatch, tmp_path):
    from rlprof_ops.runtime import profiler

    asked(backend="nsight", steps="3")
    stop = 'sleep 0.3; state Generation; while [ ! -e "$0.let" ]; do sleep 0.1; done; report'
    nsys = answering_nsys(tmp_path, stop=stop)
    monkeypatch.setenv("RLPROF_NSYS", str(nsys))
    monkeypatch.setenv("RLPROF_NSYS_SESSION", "rlprof-test")
    prof = profiler.from_env(worker="policy_worker", rank=0)

    prof.start_step(3)
    begun = time.monotonic()
    prof.stop_step(3)
    blocked_s = time.monotonic() - begun

    assert blocked_s >= 0.3 and events("closed") == []
    (tmp_path / "nsys.let").touch()
    prof.close()
    assert [event["steps"] for event in events("closed")] == [[3, 4]]
    assert [event["event"] for event in events()][-1] == "ended"


IMPORTER = """
[ -e "$0.fails" ] && { echo half > "$4"; echo "Importer error status: no" >&2; exit 1; }
[ "$1 $3" = "-i -o" ] && printf 'NVIDIA Tegra Profiler Report [END]' > "$4"
"""


@pytest.mark.parametrize("works", [True, False])
@pytest.mark.parametrize("left", ["raw", "report; raw", 'echo half > "$(cat "$0.report")"; raw'])
def test_a_raw_capture_in_place_of_a_report_is_imported(asked, events, monkeypatch, tmp_path, works, left):
    from rlprof_ops.runtime import profiler

    asked(backend="nsight", steps="3")
    tools = tmp_path / "tools"
    # As nsys 2023.4 now and then does when several stop at once: exit code 0, and the raw capture instead of
    # the report, or beside what its importer has written of it.
    nsys = answering_nsys(tools, sessions="exit 0", stop=left, importer=IMPORTER)
    if not works:
        (tools / "QdstrmImporter.fails").touch()
    monkeypatch.setenv("RLPROF_NSYS", str(nsys))
    monkeypatch.setenv("RLPROF_NSYS_SESSION", "rlprof-test")

    with profiler.from_env(worker="policy_worker", rank=0) as prof, prof.step(3):
        pass

    raws, reports = list(tmp_path.rglob("*.qdstrm")), list(tmp_path.rglob("*.nsys-rep"))
    if works or left == "report; raw":
        assert (len(events("closed")), len(reports), raws) == (1, 1, [])
    else:
        [failed] = events("failed")
        assert "QdstrmImporter failed with exit code 1: Importer error status: no" in failed["reason"]
        assert (len(raws), reports) == (1, [])  # the drain imports it


def test_the_import_of_a_window_gives_way_to_the_training(asked, events, monkeypatch, tmp_path):
    """`nsys stop` imports beside the training, as soon as nothing more enters the report."""
    from rlprof_ops.runtime import profiler

    asked(backend="nsight", steps="3")
    stop = 'state Launched; until [ "$(nice)" -ge 10 ]; do sleep 0.1; done; nice > "$0.nice"; report'
    nsys = answering_nsys(tmp_path / "tools", stop=stop)
    monkeypatch.setenv("RLPROF_NSYS", str(nsys))
    monkeypatch.setenv("RLPROF_NSYS_SESSION", "rlprof-test")
    mine = os.getpriority(os.PRIO_PROCESS, 0)
    with profiler.from_env(worker="policy_worker", rank=0) as prof, prof.step(3):
        pass
    assert len(events("closed")) == 1
    assert int((tmp_path / "tools" / "nsys.nice").read_text()) == max(10, mine)
    assert os.getpriority(os.PRIO_PROCESS, 0) == mine, "the training keeps its own"


PROGRAM = """
import os, time, nvtx
from pathlib import Path
from rlprof_ops.backends.nsight.session_recorder import NsysSessionRecorder
from types import SimpleNamespace
taker = NsysSessionRecorder(os.environ["RLPROF_NSYS_SESSION"], SimpleNamespace(options={}, flags=()))
for window in range(3):
    taker.open(Path(os.environ["OUT"], f"{window}.nsys-rep"))
    nvtx.end_range(nvtx.start_range(f"in {window}"))
    stopping = taker.close()
    until = time.monotonic() + 1
    while time.monotonic() < until:
        nvtx.end_range(nvtx.start_range("after"))
        time.sleep(0.001)
    stopping.wait()
"""


@pytest.mark.nsys
def test_what_comes_after_a_window_does_not_enter_its_report(tmp_path):
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "OUT": str(tmp_path)}
    for attempt in range(3):  # nsys 2023.4 may lose its own agent on a busy machine
        session = f"rlprof-stop-{os.getpid()}-{attempt}-"
        command = NsysCommand("launch", "nsys", ("-t", "nvtx"), on_error="fail", session=session).words()
        done = subprocess.run(
            [*command, sys.executable, "-c", PROGRAM], env=env, capture_output=True, text=True, timeout=200
        )
        if done.returncode == 0 or not BAD_LUCK.search(done.stderr):
            break

    assert done.returncode == 0, done.stderr
    assert [nvtx_ranges(tmp_path / f"{window}.nsys-rep", tmp_path, ended=True) for window in range(3)] == [
        [f"in {window}"] for window in range(3)
    ]


@pytest.mark.parametrize(
    "listing",
    ["listing", "echo who knows", "exit 1", "sleep 300"],
    ids=["collection", "unreadable", "failing", "hanging"],
)
def test_a_stop_that_hangs_lets_training_go_on(asked, events, monkeypatch, tmp_path, listing):
    from rlprof_ops.runtime import profiler

    asked(backend="nsight", steps="3, 5")
    stop = 'while [ ! -e "$0.let" ]; do sleep 0.1; done; report'
    nsys = answering_nsys(tmp_path, sessions=listing, stop=stop)
    monkeypatch.setenv("RLPROF_NSYS", str(nsys))
    monkeypatch.setenv("RLPROF_NSYS_SESSION", "rlprof-test")
    monkeypatch.setenv("RLPROF_CLOSE_WAIT_SECONDS", "1.5")
    monkeypatch.setenv("RLPROF_OPEN_WAIT_SECONDS", "1.5")
    prof = profiler.from_env(worker="policy_worker", rank=0)

    with prof.step(3):
        pass
    prof.start_step(4)
    begun = time.monotonic()
    prof.stop_step(4)
    with prof.step(5):  # whose window cannot open
        blocked_s = time.monotonic() - begun
    (tmp_path / "nsys.let").touch()
    prof.close()

    assert blocked_s < 30
    assert (tmp_path / "nsys.calls").read_text().count("sessions") < 12
    [closed] = events("closed")
    assert (
        closed["steps"] == [3, 4]
        and "training went on, and later work may be in the report" in closed["reason"]
    )
    [failed] = events("failed")
    assert failed["steps"] == [5, 6] and "nsys was still writing the last window's report" in failed["reason"]


def test_a_second_window_of_the_same_step_keeps_the_first_report(tmp_path):
    from rlprof_ops.window.report_file import move_into_place, unused

    final = tmp_path / "profiles/w_rank0_step3-4_n1_7.nsys-rep"
    places = []
    for content in (b"first", b"second", b"third"):
        target = unused(tmp_path / final.name)
        target.write_bytes(content)
        places.append(move_into_place(target, final))
    assert [place.name for place in places] == [
        "w_rank0_step3-4_n1_7.nsys-rep",
        "w_rank0_step3-4_n1_7.1.nsys-rep",
        "w_rank0_step3-4_n1_7.2.nsys-rep",
    ]
    assert [place.read_bytes() for place in places] == [b"first", b"second", b"third"]
