"""A node's record: read again as it was written, whatever moment the writer is killed at."""

from __future__ import annotations

import json
import os
import random
import resource
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rlprof_ops.job.folders import pinned_run
from rlprof_ops.recorder import record_file, rows
from rlprof_ops.recorder.detect.anomaly import Anomaly
from rlprof_ops.recorder.head_recorder import HeadRecorder
from rlprof_ops.recorder.news import News
from rlprof_ops.recorder.node_recorder import NodeRecorder
from rlprof_ops.recorder.record_file import FOLDER, RECORD, TAIL, RecordFile, read_folder
from rlprof_ops.request import ProfileRequest, request_from_json
from tests.recorder.simulated import healthy
from tests.waits import wait_until

STEP = rows.LAYOUT[rows.STEP][0]


def steps(folder: Path) -> list[int]:
    return [
        step
        for block in read_folder(folder)
        for _, step, _, _ in STEP.iter_unpack(block.sections.get(rows.STEP, b""))
    ]


def write(file: RecordFile, number: int) -> None:
    file.add([(rows.STEP, rows.pack(rows.STEP, 1, number, 10**18, 1.5))])


def test_rows_are_there_before_and_after_they_are_sealed(tmp_path: Path) -> None:
    file = RecordFile(tmp_path / FOLDER)
    file.begin(123)
    for number in range(1, 50):
        write(file, number)
        assert steps(tmp_path / FOLDER) == list(range(1, number + 1))
        if number % 7 == 0:
            file.seal()
    assert {block.base_ns for block in read_folder(tmp_path / FOLDER)} == {123}


def test_a_disk_that_is_full_for_a_while_costs_no_row(tmp_path: Path) -> None:
    """A write that it takes in part would make unreadable what comes after."""
    folder = tmp_path / FOLDER
    file = RecordFile(folder)

    def minute(number: int) -> None:
        file.begin(number)
        for row in range(60):
            write(file, 60 * number + row)
        file.seal()
        file.begin(0)

    before, soft = resource.getrlimit(resource.RLIMIT_FSIZE), signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        minute(0)
        resource.setrlimit(resource.RLIMIT_FSIZE, (file.size_bytes + 50, before[1]))
        minute(1)
        minute(2)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, soft)
    minute(3)
    minute(4)

    assert steps(folder) == list(range(300))
    RecordFile(folder)
    assert steps(folder) == list(range(300))


def test_a_disk_that_stays_full_takes_no_memory_without_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(record_file, "_MOST_UNSEALED", 2000)
    file = RecordFile(tmp_path / FOLDER)
    (tmp_path / FOLDER / RECORD).mkdir()  # nothing can be written there
    for number in range(500):
        write(file, number)
        file.seal()
    assert sum(map(len, file._sections.values())) < 2000


def test_whatever_byte_a_kill_cuts_at_only_the_last_rows_are_lost(tmp_path: Path) -> None:
    folder = tmp_path / FOLDER
    file = RecordFile(folder)
    for number in range(1, 31):
        write(file, number)
        if number % 10 == 0:
            file.seal()
    for number in range(31, 36):
        write(file, number)
    record, tail = (folder / RECORD).read_bytes(), (folder / TAIL).read_bytes()
    rng = random.Random(0)
    for _ in range(60):
        cut = rng.randrange(len(tail))
        (folder / TAIL).write_bytes(tail[:cut])
        assert steps(folder) == list(range(1, len(steps(folder)) + 1)) and len(steps(folder)) >= 30
    (folder / TAIL).write_bytes(tail)
    (folder / RECORD).write_bytes(record[:-5])  # killed while it appended: its tail is there still
    found = steps(folder)
    assert found == [*range(1, 21), *range(31, 36)] or found == list(range(1, 21))
    again = RecordFile(folder)
    write(again, 99)
    again.seal()
    assert steps(folder)[:20] == list(range(1, 21)) and steps(folder)[-1] == 99


def test_a_block_that_is_there_is_not_read_a_second_time_from_the_tail(tmp_path: Path) -> None:
    folder = tmp_path / FOLDER
    file = RecordFile(folder)
    write(file, 1)
    tail = (folder / TAIL).read_bytes()
    file.seal()
    (folder / TAIL).write_bytes(tail)  # killed between the block and the end of its tail
    assert steps(folder) == [1]
    RecordFile(folder)
    assert steps(folder) == [1]


@pytest.mark.parametrize("data", [b"", b"\0" * 100, b"RLPR" + b"\xff" * 100, os.urandom(500)])
def test_what_is_no_record_has_no_rows(tmp_path: Path, data: bytes) -> None:
    (tmp_path / RECORD).write_bytes(data)
    (tmp_path / TAIL).write_bytes(data)
    assert steps(tmp_path) == []


def test_a_node_and_hour_of_eight_gpus_is_below_a_megabyte(tmp_path: Path) -> None:
    """28,800 rows of GPUs that do something different each second, and 600 steps of nine processes."""
    rng = random.Random(1)
    file = RecordFile(tmp_path / FOLDER)
    for second in range(3600):
        t = second % 60 * 10
        found = [
            (
                rows.GPU,
                rows.pack(
                    rows.GPU, t, gpu, rng.randrange(101), 60 + rng.randrange(8), 0, rng.randrange(300, 700),
                    rng.choice((1980, 1965, 1755)), 70_000 + rng.randrange(4000), 4, rng.randrange(2000),
                    rng.randrange(100_000),
                ),
            )
            for gpu in range(8)
        ]  # fmt: skip
        values = (
            rng.randrange(1001),
            300_000 + rng.randrange(9999),
            *(rng.randrange(10**6) for _ in range(4)),
        )
        found.append((rows.HOST, rows.pack(rows.HOST, t, *values, 5000)))
        if second % 6 == 0:
            for process in range(9):
                at = 10**18 + second * 10**9
                found.append((rows.STEP, rows.pack(rows.STEP, process, second, at, rng.uniform(5, 6))))
                for name in range(7):
                    times = (rng.random(), rng.random(), rng.random())
                    found.append((rows.PHASE, rows.pack(rows.PHASE, process, second, name, 1, *times)))
        file.add(found)
        if second % 60 == 59 or file.full:
            file.seal()
    size = sum(path.stat().st_size for path in (tmp_path / FOLDER).iterdir())
    assert size < 1_000_000, size


def test_a_recorder_that_is_killed_loses_a_second(tmp_path: Path) -> None:
    """The real process, SIGKILL; what it has looked at is there, and the next one goes on."""
    argv = [sys.executable, "-m", "rlprof_ops.recorder", f"--node-dir={tmp_path}", "--node=n1", "--nodes=n1"]
    folder = tmp_path / FOLDER
    looks = []
    for _ in range(2):
        with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
            try:
                assert process.stdout is not None
                for _ in range(3):
                    assert b"host" in process.stdout.readline()
            finally:
                os.kill(process.pid, signal.SIGKILL)
        looks.append(sum(len(block.sections[rows.HOST]) for block in read_folder(folder)))
    size = rows.LAYOUT[rows.HOST][0].size
    assert looks[0] >= 2 * size and looks[1] >= looks[0] + 2 * size


def test_the_recorder_ends_when_told_and_seals_its_rows(tmp_path: Path) -> None:
    argv = [sys.executable, "-m", "rlprof_ops.recorder", f"--node-dir={tmp_path}", "--node=n1", "--nodes=n1"]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        process.terminate()
        assert process.wait(60) == 0
    assert list(record_file.read(tmp_path / FOLDER / RECORD))


def test_the_recorder_ends_with_its_parent(tmp_path: Path) -> None:
    """Its supervisor gets SIGKILL: the recorder keeps its rows and goes."""
    argv = [sys.executable, "-m", "rlprof_ops.recorder", f"--node-dir={tmp_path}", "--node=n1", "--nodes=n1"]
    parent = "import subprocess, sys; p = subprocess.Popen(sys.argv[1:]); print(p.pid, flush=True); p.wait()"
    with subprocess.Popen(
        [sys.executable, "-c", parent, *argv], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        pid = int(process.stdout.readline())
        process.stdout.readline()
        process.kill()
    wait_until(lambda: not os.path.isdir(f"/proc/{pid}") or "Z" in state_of(pid), 60)
    assert list(record_file.read(tmp_path / FOLDER / RECORD))


def state_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return "Z"


def test_what_a_killed_head_has_told_is_not_told_again(tmp_path: Path) -> None:
    told: list[dict[str, object]] = []
    finding = Anomaly("throttle", "GPU 0 is hot", "throttle:n1:0", 1, node="n1")
    (tmp_path / "recorder").mkdir()
    (tmp_path / "recorder" / "findings.jsonl").write_text(json.dumps(finding.to_dict()) + '\n{"kind": "thr')
    head = HeadRecorder(pinned_run(tmp_path, tmp_path), "1", ["n1"], ProfileRequest(), told.append)
    for second in range(20):
        t_ns = 10**18 + second * 10**9
        head.take(News("n1", t_ns, None, (), (), (), (), (), {0: (1.0, 0x40), 1: (1.0, 0x40)}))
    assert [each["finding"]["key"] for each in told] == ["throttle:n1:1"]  # type: ignore[index]
    assert [each["key"] for each in head.view.summary()["findings"]] == ["throttle:n1:0", "throttle:n1:1"]
    head.close(10)
    assert json.loads((tmp_path / "recorder" / "summary.json").read_text())["job"] == "1"


def test_a_recorder_that_was_started_again_keeps_its_budget(tmp_path: Path) -> None:
    """Every fifth step, three in all: two before it is killed, one after, on the next rank; and steps that
    are told a second time open nothing.
    """
    request = request_from_json(json.dumps({"captures": [{"backend": "torch", "workers": ["policy_worker"],
                                                          "when": {"every": 5, "at_most": 3}}]}))  # fmt: skip
    asked: list[dict[str, Any]] = []
    told = list(healthy(1, 30, ranks=4))
    shift = time.time_ns() - told[11][0].begin_ns - int(told[11][0].seconds * 1e9)
    told = [[replace(row, begin_ns=row.begin_ns + shift) for row in rows] for rows in told]

    def tell(what: dict[str, Any]) -> None:
        if "capture" in what:
            asked.append(json.loads(what["capture"]))

    for last in (12, 30):
        head = HeadRecorder(pinned_run(tmp_path, tmp_path), "1", ["n1"], request, tell)
        for rows_told in told[:last]:
            head.take(News("n1", rows_told[0].begin_ns, None, (), (), (), tuple(rows_told), (), {}))
        head.close(10)
    assert [each["id"] for each in asked] == [f"when-every-step{step}-1" for step in (5, 10, 15)]
    assert [each["ranks"] for each in asked] == [[0], [1], [2]]


def test_a_long_job_keeps_every_step_and_ever_fewer_samples(tmp_path: Path) -> None:
    """Each doubling of the record halves what it takes of samples; of steps it takes all."""
    recorder = NodeRecorder(tmp_path, "n1", thin_bytes=2000)
    marks = tmp_path / "marks"
    prof = {"RLPROF_RECORD": "1", "RLPROF_NODE_DIR": str(tmp_path)}
    program = (
        "import sys\nfrom rlprof_ops.runtime import profiler\n"
        "prof = profiler.from_env(worker='policy_worker', rank=1, world_size=2)\n"
        "for line in sys.stdin:\n    with prof.step(int(line)):\n        pass\n    print(line, flush=True)\n"
    )
    told: list[tuple[int, int]] = []
    with subprocess.Popen(
        [sys.executable, "-c", program], env={**os.environ, **prof, "PYTHONPATH": ":".join(sys.path)},
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        assert process.stdin is not None and process.stdout is not None
        for step in range(1, 61):
            process.stdin.write(f"{step}\n")
            process.stdin.flush()
            process.stdout.readline()
            process.stdout.readline()
            recorder.look()
            recorder.seal()
            told.append(
                (
                    recorder.every(),
                    sum(1 for block in read_folder(tmp_path / FOLDER) if rows.HOST in block.sections),
                )
            )
        process.stdin.close()
    assert marks.is_dir() and steps(tmp_path / FOLDER) == list(range(1, 61))
    assert told[0] == (1, 1) and told[-1][0] >= 4 and told[-1][1] < 40, told


def test_a_look_at_the_reports_that_are_home_costs_no_recorder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sync renames them meanwhile, and their storage may hang."""
    from rlprof_ops.recorder import head_recorder

    (tmp_path / "profiles").mkdir()
    (tmp_path / "profiles/report").write_bytes(bytes(1000))
    (tmp_path / "profiles/gone").symlink_to("nowhere")  # what has been renamed since it was listed
    asked = request_from_json(
        '{"captures": [{"workers": ["*"], "when": {"every": 10, "disk": "1MiB"}}]}', "here"
    )
    head = HeadRecorder(pinned_run(tmp_path, tmp_path), "7", ["n1"], asked, lambda told: None)
    monkeypatch.setattr(head_recorder, "_STORAGE_S", 60.0)
    assert head._used() == 1000
    monkeypatch.setattr(head_recorder, "_bytes_below", lambda folder: time.sleep(60))
    monkeypatch.setattr(head_recorder, "_STORAGE_S", 0.1)
    assert head._used() == 1000
    head.close(5)


def test_a_second_trainer_of_a_process_that_counts_from_1_keeps_its_steps(tmp_path: Path) -> None:
    """A block has no number of a process twice, for phases name their step by it; a recorder that was started
    again keeps none a second time."""
    (tmp_path / "events").mkdir()
    t_ns, told = 10**18, [{"event": "registered", "worker": "trainer", "rank": 0, "pid": 1}]
    for step in (*range(1, 11), *range(1, 9)):
        times: dict[str, Any] = {"begin_ns": t_ns, "end_ns": t_ns + 10**9}
        phases = [["train", t_ns, t_ns + 10**8 * step, 0]]
        told.append({"event": "step", "step": step, **times, "phases": phases})
        t_ns += 10**9
    lines = [json.dumps(row) + "\n" for row in told]
    events = tmp_path / "events" / "w.jsonl"
    events.write_text("".join(lines[:6]))
    NodeRecorder(tmp_path, "n1").look()
    events.write_text("".join(lines))
    recorder = NodeRecorder(tmp_path, "n1")
    recorder.look()
    assert steps(tmp_path / FOLDER) == [*range(1, 11), *range(1, 9)]
    for block in read_folder(tmp_path / FOLDER):
        numbers = [row[1] for row in STEP.iter_unpack(block.sections.get(rows.STEP, b""))]
        marked = rows.LAYOUT[rows.PHASE][0].iter_unpack(block.sections.get(rows.PHASE, b""))
        assert len(set(numbers)) == len(numbers) and [row[1] for row in marked] == numbers
