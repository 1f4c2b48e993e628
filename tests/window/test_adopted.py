"""A window that somebody before has opened, who is gone: it goes on as one of ours."""

from __future__ import annotations

import json
from pathlib import Path

from tests.waits import wait_until

from rlprof_ops.request import request_from_dict
from rlprof_ops.request.steps import Window
from rlprof_ops.runtime.process.event_log import EventLog, log_once
from rlprof_ops.runtime.process.worker_identity import find_identity
from rlprof_ops.window.captures import Captures
from rlprof_ops.window.gate import OpenWindow
from rlprof_ops.window.output_dir import OutputDir


class Session:
    """Stands in for the recorder of a session, with as many bytes in its open window as `holds`."""

    suffix = ".nsys-rep"
    most_bytes = 40e6

    def __init__(self, target: Path) -> None:
        self.target = target
        self.holds = 1_000_000

    def size_bytes(self) -> int:
        return self.holds

    def close(self) -> Path:
        self.target.write_bytes(b"NVIDIA Tegra Profiler Report ... [END]")
        return self.target


def test_it_is_closed_before_its_report_is_too_large(tmp_path: Path) -> None:
    who = find_identity("policy", 0, 1, {"RLPROF_NODE_DIR": str(tmp_path)})
    target = tmp_path / "left.nsys-rep"
    session = Session(target)
    log = tmp_path / "events.jsonl"
    captures = Captures(
        who, tmp_path, tmp_path, EventLog(log), OutputDir("", log_once), lambda *_: (session, "")
    )
    request = request_from_dict(
        {"captures": [{"workers": ["policy"], "steps": "2:9", "options": {"max_mb": "40"}}]}
    )
    capture = captures.add(request.captures[0])
    captures.adopt(capture, OpenWindow(Window(2, 9), None, [2, 3]), target)
    assert captures.any_open

    session.holds = 41_000_000
    wait_until(lambda: log.exists() and log.read_text().endswith("\n"), seconds=30)

    (closed,) = map(json.loads, log.read_text().splitlines())
    assert (closed["event"], closed["partial"], closed["seen"]) == ("closed", True, [2, 3])
    assert closed["reason"].startswith("closed with 39.1 MiB in it, so that it stays within max_mb")
    assert not captures.any_open
