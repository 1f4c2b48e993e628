"""A run folder in which each file in turn is what it should not be: every command says so, or goes on; none
hangs, none gives a traceback. Each pair of file and damage meets three commands in turn, and all of them with

    RLPROF_HOSTILE=all .venv/bin/python -m pytest tests/operate/test_hostile_folder.py
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from rlprof_ops.recorder.job_view import JobView
from tests.analyze.shared import kernel, mark, write_trace
from tests.command_line import run_command

DEADLINE_S = 60
DRIVES = "\x1b]0;pwn\x07\x1b[31m\x9b1m\u202e"  # a title, red twice, and what is read from right to left
SURROGATES = '"\\ud800\\udcff"'
FILES = (
    "run.json",
    "manifest.json",
    "state.json",
    "report.json",
    "recorder/summary.json",
    "recorder/findings.jsonl",
    "nodes/n1.json",
    "nodes/n1/events/w_rank0_n1_77.jsonl",
    "nodes/n1/events/w_rank0_n1_77.step",
    "nodes/n1/record/record.bin",
    "nodes/n1/record/tail.bin",
    "logs/driver.log",
    "logs/head.log",
    "logs/n1/ray_start.log",
    ".secrets/attach.env",
    "profiles/torch/w/rank0/w_rank0_step3-3_n1_77.pt.trace.json",
    "profiles/memory/w/rank0/w_rank0_step3-3_n1_77.pickle",
    "profiles/nsight/w/rank0/w_rank0_step3-3_n1_77.nsys-rep",
    "profiles/odd.json",
    "profiles/odd.sqlite",
)
COMMANDS = (
    ("status",),
    ("status", "--json"),
    ("top", "--once"),
    ("top", "--json"),
    ("ps",),
    ("ps", "--json"),
    ("logs",),
    ("logs", "-n", "3"),
    ("logs", "--node", "0"),
    ("harvest", "--inside", "0"),
    ("report", "-j", "1"),
    ("timeline", "-j", "1"),
    ("export", "--openmetrics", "{out}/job.prom"),
    ("export", "--tensorboard", "{out}/board"),
    ("stacks", "--timeout", "1"),
    ("capture", "--workers", "w", "--steps", "next:1", "--timeout", "1"),
    ("dashboard",),
    ("retry", "--dry-run"),
    ("stop",),
)


def fifo(path: Path) -> None:
    os.mkfifo(path)


def folder(path: Path) -> None:
    path.mkdir()


def dangling(path: Path) -> None:
    path.symlink_to("nowhere")


def sparse(path: Path) -> None:
    """A gigabyte; of a log, which `logs` prints whole, less."""
    with open(path, "wb") as file:
        file.truncate(1 << (24 if path.parent.name == "logs" else 30))


def deep(path: Path) -> None:
    path.write_text("[" * 100_000 + "]" * 100_000)


def deep_object(path: Path) -> None:
    path.write_text('{"job": ' * 100_000 + "1" + "}" * 100_000)


def binary(path: Path) -> None:
    path.write_bytes(bytes(range(256)) * 64)


def _values(path: Path, change: Callable[[object], object]) -> None:
    """Every value of the file's JSON exchanged, its keys as they are."""
    text = path.with_name(path.name + ".sound").read_text(errors="replace")
    with contextlib.suppress(ValueError):
        path.write_text("\n".join(json.dumps(_changed(json.loads(line), change)) for line in [text]))
        return
    with contextlib.suppress(ValueError):
        lines = [json.dumps(_changed(json.loads(line), change)) for line in text.splitlines()]
        path.write_text("\n".join(lines) + "\n")
        return
    path.write_text(json.dumps(change("")))


def _changed(value: object, change: Callable[[object], object], depth: int = 0) -> object:
    if isinstance(value, dict):
        kept = {"schema", "event"}
        return {
            key: each if key in kept else _changed(each, change, depth + 1) for key, each in value.items()
        }
    return change(value)


def lists(path: Path) -> None:
    _values(path, lambda value: [[], {}, None, -1] if not isinstance(value, list) else "list")


def objects(path: Path) -> None:
    _values(path, lambda value: {"a": 1})


def nulls(path: Path) -> None:
    _values(path, lambda value: None)


def huge(path: Path) -> None:
    _values(path, lambda value: 10**400)


def no_numbers(path: Path) -> None:
    _values(path, lambda value: float("nan") if isinstance(value, (int, float)) else float("inf"))


def surrogates(path: Path) -> None:
    """Half a character in every text, and in every list of texts."""

    def change(value: object) -> object:
        if isinstance(value, str):
            return "\ud800" + value
        return [change(each) for each in value] if isinstance(value, list) else value

    _values(path, change)


KINDS = (
    fifo,
    folder,
    dangling,
    sparse,
    deep,
    deep_object,
    binary,
    lists,
    objects,
    nulls,
    huge,
    no_numbers,
    surrogates,
)


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run folder with one of each file that a command reads."""
    run = tmp_path_factory.mktemp("sound") / "4711-logs"
    for name in FILES:
        (run / name).parent.mkdir(parents=True, exist_ok=True)
        (run / name).write_bytes(b"")
    record = {
        "schema": 1,
        "job": "4711",
        "job_name": "grpo",
        "nodes": ["n1"],
        "head": "n1",
        "command": "python t.py",
        "request": {"captures": [{"workers": ["w"], "backend": "torch", "steps": "3"}]},
        "world": {"w": 1},
        "started_ns": 5,
        "submit_dir": "/tmp",
        "waiting": "",
        "driver": {"started_ns": 5, "ended_ns": 9, "exit_code": 1, "signal": None},
        "end": {"cause": "driver_exit", "detail": "it failed", "phases_s": {}, "lost_nodes": []},
    }
    (run / "run.json").write_text(json.dumps(record))
    node = {
        "schema": 1,
        "node": "n1",
        "clean": True,
        "files": [{"path": "a", "size_bytes": 1, "state": "ok"}],
        "recovered": ["a"],
        "failed": [{"path": "b", "reason": "full"}],
        "plugin_loaded": True,
        "clock": [
            {"moment": "start", "reference": "n2", "at_ns": 10**18, "offset_ns": 5, "error_ns": 7},
            {"moment": "end", "reference": "n2", "at_ns": 10**18 + 10**11, "offset_ns": 6, "error_ns": 7},
        ],
    }
    (run / "nodes/n1.json").write_text(json.dumps(node))
    path = "profiles/torch/w/rank0/w_rank0_step3-3_n1_77.pt.trace.json"
    events = [
        {
            "event": "registered",
            "worker": "w",
            "rank": 0,
            "pid": 77,
            "host": "n1",
            "t_ns": 5,
            "world_size": 1,
        },
        {"event": "opened", "t_ns": 6, "backend": "torch", "steps": [3, 4], "phase": None},
        {"event": "closed", "t_ns": 7, "backend": "torch", "steps": [3, 4], "phase": None, "path": path},
        {"event": "step", "step": 3, "begin_ns": 5, "end_ns": 9, "phases": [["train", 6, 8]]},
    ]
    (run / "nodes/n1/events/w_rank0_n1_77.jsonl").write_text("".join(json.dumps(e) + "\n" for e in events))
    (run / "nodes/n1/events/w_rank0_n1_77.step").write_bytes((3).to_bytes(8, "little"))
    finding = {
        "kind": "hang",
        "text": "stands still",
        "key": "k",
        "t_ns": 1,
        "step": 3,
        "worker": "w",
        "ranks": [0],
        "node": "n1",
        "phase": "",
        "evidence": {},
    }
    summary = JobView("4711", ["n1"]).summary() | {"findings": [finding]}
    (run / "recorder/summary.json").write_text(json.dumps(summary))
    (run / "recorder/findings.jsonl").write_text(json.dumps(finding) + "\n")
    state = {
        "schema": 1,
        "written_ns": 1,
        "control": "",
        "nodes_up": 1,
        "step": 3,
        "captures": {"planned": 1},
        "workers": [["w", 0, "n1", 77, 5, True, False]],
        "answers": [],
        "steps": [],
        "found": "",
    }
    (run / "state.json").write_text(json.dumps(state))
    for name in ("logs/driver.log", "logs/head.log", "logs/n1/ray_start.log"):
        (run / name).write_text("[rlprof] 1 of 1 nodes are up\nValueError: it failed\n")
    (run / ".secrets/attach.env").write_text("export RLPROF_DASHBOARD=1\n")
    write_trace(run / path, [mark("step 3", 1.0, 100.0), mark("train", 2.0, 50.0)], None, 10**18)
    for words in (("harvest", "--inside", "0"), ("report", "-j", "1")):
        done = run_command((*words, str(run)), run.parent)
        assert done.code in (0, 3) and "Traceback" not in done.said, done.said
    return run


def _in_turn(number: int) -> list[tuple[str, ...]]:
    """The commands that pair `number` of a file and a damage meets."""
    if os.environ.get("RLPROF_HOSTILE") == "all":
        return list(COMMANDS)
    return [COMMANDS[(number + 5 * turn) % len(COMMANDS)] for turn in range(3)]


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("name", FILES)
def test_no_file_of_a_run_folder_ends_a_command_with_a_traceback_or_holds_it(
    sound, tmp_path, monkeypatch, name, kind
):
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("BASE_LOG_DIR", str(tmp_path))
    wrong = []
    for words in _in_turn(FILES.index(name) + 7 * KINDS.index(kind)):
        place = tmp_path / "-".join(word.strip("-") for word in words).replace("/", "_")[:40]
        run = shutil.copytree(sound, place / "4711-logs")
        odd = run / name
        odd.rename(odd.with_name(odd.name + ".sound"))
        kind(odd)
        odd.with_name(odd.name + ".sound").unlink()
        filled = [word.format(out=place) for word in words[1:]]
        where = run.parent if words[0] == "ps" else run
        done = run_command((words[0], str(where), *filled), place, DEADLINE_S)
        if done.code in ("late", "traceback") or (done.code not in (0, 3) and not done.said.strip()):
            wrong.append(f"{' '.join(words)}: {done.code}\n{done.said[-1500:]}")
        shutil.rmtree(place)
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_a_damaged_summary_is_named(sound, tmp_path, kind):
    run = shutil.copytree(sound, tmp_path / "4711-logs")
    path = run / "recorder/summary.json"
    path.rename(path.with_name(path.name + ".sound"))
    kind(path)
    done = run_command(("top", "--once", str(run)), tmp_path)
    named = str(path) in done.said.replace("\n", "")
    assert (done.code == 0 and kind is surrogates) or (done.code == 1 and named), done.said


@pytest.mark.parametrize(
    "words", [("report", "-j", "1"), ("timeline", "-j", "1")], ids=lambda words: words[0]
)
@pytest.mark.parametrize("value", [9 * 10**18, -9 * 10**18, 10**30, 10**12], ids=lambda value: f"{value:.0e}")
@pytest.mark.parametrize("name", ["at_ns", "offset_ns", "error_ns"])
def test_a_clock_may_be_told_to_be_anywhere(sound, tmp_path, words, value, name):
    """Two hosts, of which one is put on the other's clock."""
    run = shutil.copytree(sound, tmp_path / "4711-logs")
    other = run / "profiles/torch/w/rank1/w_rank1_step3-3_n2_78.pt.trace.json"
    write_trace(other, [mark("step 3", 1.0, 100.0), mark("train", 2.0, 50.0)], None, 10**18)
    path = run / "nodes/n1.json"
    record = json.loads(path.read_text())
    record["clock"][1][name] = value
    for clock in (record["clock"], record["clock"][1:]):
        path.write_text(json.dumps(record | {"clock": clock}))
        done = run_command((words[0], str(run), *words[1:]), tmp_path, DEADLINE_S)
        assert done.code == 0, done.said[-1500:]


@pytest.fixture(scope="module")
def driving(sound, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same folder, in which every name is one that drives a terminal, where it is printed as it is."""
    run = shutil.copytree(sound, tmp_path_factory.mktemp("driving") / "4711-logs")
    ranges = [mark("step 3", 1.0, 100.0), mark(f"train{DRIVES}", 2.0, 50.0)]
    for name in ("w_rank0_step3-3_n1_77.pt.trace.json", f"v{DRIVES}_rank0.json"):
        path = run / "profiles/torch/w/rank0" / name
        write_trace(path, [*ranges, kernel(f"gemm{DRIVES}", 3.0, 40.0)], None, 10**18)
    (run / f"profiles/odd{DRIVES}.json").write_text('{"traceEvents": [')
    (run / "manifest.json").unlink()
    (run / "report.json").unlink()
    for name in (
        "run.json",
        "state.json",
        "recorder/summary.json",
        "nodes/n1.json",
        *run.glob("nodes/n1/events/*l"),
    ):
        path = run / name
        told = [_driving(json.loads(line)) for line in path.read_text().splitlines()]
        path.write_text("".join(json.dumps(line) + "\n" for line in told))
    (run / "request.yaml").write_text(json.dumps({"captures": [{"workers": [f"w{DRIVES}"], "steps": "3"}]}))
    return run


def _driving(value: object, key: str = "") -> object:
    """A record whose free texts drive a terminal; what has a form of its own keeps it."""
    if isinstance(value, dict):
        return {name: _driving(each, name) for name, each in value.items()}
    if isinstance(value, list):
        return [_driving(each, key) for each in value]
    free = ("worker", "job_name", "detail", "waiting", "text", "reason", "found", "phases", "heard")
    return value + DRIVES if key in free and isinstance(value, str) else value


@pytest.mark.parametrize(
    "words",
    [
        ("report", "{run}", "-j", "1", "-o", "{out}"),
        ("report", "{run}", "-j", "1", "-o", "{out}", "--format", "markdown"),
        ("report", "{run}/profiles/odd{drives}.json", "-o", "{out}"),
        ("report", "{run}/none{drives}"),
        ("diff", "{run}", "{run}", "-j", "1"),
        ("timeline", "{run}", "-j", "1", "-o", "{out}"),
        ("harvest", "{run}", "--inside", "0"),
        ("status", "{run}"),
        ("top", "--once", "{run}"),
        ("ps", "{run}"),
        ("plan", "{run}/request.yaml"),
        ("plan", "{run}/request{drives}.yaml"),
    ],
    ids=lambda words: "-".join(words[:1]),
)
def test_no_name_of_a_run_drives_the_terminal(driving, tmp_path, words):
    filled = tuple(word.format(run=driving, out=tmp_path, drives=DRIVES) for word in words)
    done = run_command(filled, tmp_path, DEADLINE_S)
    assert done.code in (0, 1, 2, 3) and "pwn" in done.said, (done.code, done.said)
    assert done.said.replace("\n", "").isprintable(), done.said.encode("unicode_escape")
