"""The file that an engine's process writes its requests into."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.waits import wait_until

from rlprof_ops.host import log_line
from rlprof_ops.job.knobs import python_path
from rlprof_ops.runtime import request_log
from rlprof_ops.runtime.request_log import EngineRequest, RequestLog


def told(name: str) -> EngineRequest:
    return EngineRequest(name, 12, 34, 1_000, None, None, 2_000, 3_000, None, "stop")


def made(name: str) -> tuple[EngineRequest, None]:
    return told(name), None


@pytest.fixture
def node_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("RLPROF_NODE_DIR", str(tmp_path))
    monkeypatch.setenv("RLPROF_WORKER", "rollout")
    monkeypatch.setenv("RLPROF_RANK", "3")
    monkeypatch.setattr(log_line, "_said", set())
    return tmp_path


def lines(node_dir: Path) -> list[object]:
    path = node_dir / "requests" / f"{os.getpid()}.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def test_a_thread_writes_who_it_is_and_a_line_a_request(node_dir: Path) -> None:
    log = RequestLog("vllm")
    log.add(made, "a")
    log.add(made, "b" * 300)
    wait_until(lambda: len(lines(node_dir)) == 3)
    first, *rows = lines(node_dir)
    assert isinstance(first, dict)
    assert {name: first[name] for name in ("event", "worker", "rank", "pid", "engine")} == {
        "event": "requests", "worker": "rollout", "rank": 3, "pid": os.getpid(), "engine": "vllm"
    }  # fmt: skip
    assert first["fields"] == list(EngineRequest._fields)
    assert rows == [list(told("a")), list(told("b" * 100))]
    log.off = True


def test_a_full_file_says_so_and_nothing_more_is_taken(
    node_dir: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(request_log, "MOST_BYTES", 1000)
    log = RequestLog("vllm")
    for number in range(20):
        log.add(made, f"request {number}")
    log.flush()
    assert log.off
    log.add(made, "late")
    log.flush()
    *_, last, full = lines(node_dir)
    assert isinstance(last, list) and last[0] == "request 19"
    assert isinstance(full, dict) and full["event"] == "full"
    assert "later requests are not recorded" in capsys.readouterr().err


def test_rows_that_memory_does_not_hold_are_counted(node_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request_log, "_MOST_WAITING", 2)
    monkeypatch.setattr(request_log, "_EVERY_S", 3600)
    log = RequestLog("vllm")
    for number in range(5):
        log.add(made, str(number))
    log.flush()
    assert lines(node_dir)[-1] == {"event": "lost", "count": 3}
    log.off = True


def test_a_folder_that_takes_nothing_is_said_once(node_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (node_dir / "requests").write_text("no folder")
    log = RequestLog("vllm")
    log.add(made, "a")
    log.flush()
    assert log.off
    log.flush()
    assert capsys.readouterr().err.count("requests are no longer recorded") == 1


def test_a_row_that_cannot_be_made_ends_the_log_and_takes_no_other_along(
    node_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = RequestLog("vllm")
    log.add(made, "a")
    log.add(made)
    log.flush()
    assert log.off
    assert lines(node_dir)[1:] == [list(told("a"))]
    assert capsys.readouterr().err.count("requests are no longer recorded: TypeError") == 1


def test_what_was_taken_last_is_written_when_the_process_ends(tmp_path: Path) -> None:
    program = (
        "from rlprof_ops.runtime.request_log import RequestLog, EngineRequest\n"
        "row = EngineRequest('a', 1, 2, 3, None, None, None, 4, None, 'abort')\n"
        "RequestLog('vllm').add(lambda: (row, None))\n"
    )
    env = {**os.environ, "RLPROF_NODE_DIR": str(tmp_path), "PYTHONPATH": python_path(None)}
    subprocess.run([sys.executable, "-c", program], env=env, check=True, timeout=60)
    [path] = (tmp_path / "requests").iterdir()
    assert json.loads(path.read_text().splitlines()[1])[0] == "a"


@pytest.mark.parametrize(("knob", "asked"), [(None, True), ("1", True), ("0", False)])
def test_the_knob(node_dir: Path, monkeypatch: pytest.MonkeyPatch, knob: str | None, asked: bool) -> None:
    if knob is not None:
        monkeypatch.setenv("RLPROF_ENGINE_REQUESTS", knob)
    assert request_log.asked() is asked
    monkeypatch.delenv("RLPROF_NODE_DIR")
    assert not request_log.asked()
