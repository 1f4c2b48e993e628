"""`rlprof top` in a terminal: a real pseudo-terminal, keys as a person types them."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import select
import subprocess
import sys
import time
from pathlib import Path

import pytest

from rlprof_ops.cli import main
from rlprof_ops.operate.recorded import sparkline
from tests.operate.conftest import RunFolder
from tests.recorder.recorded import write_summary
from tests.recorder.simulated import healthy

pytest.importorskip("rich")


def shown(run: Path, capsys: pytest.CaptureFixture[str], columns: int = 200) -> list[str]:
    """`top --once` as it is printed on a terminal of so many columns."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COLUMNS", str(columns))
        capsys.readouterr()
        with contextlib.suppress(SystemExit):
            main(["top", "--once", str(run)])
    return capsys.readouterr().out.splitlines()


def test_the_age_of_a_job_that_has_ended(run_folder: RunFolder, capsys: pytest.CaptureFixture[str]) -> None:
    write_summary(run_folder.path, "4711", healthy(1, 5, ranks=2))
    summary = run_folder.path / "recorder" / "summary.json"
    told = json.loads(summary.read_text())
    summary.write_text(json.dumps(told | {"t_ns": told["t_ns"] - 3_600_000_000_000}))
    run_folder.record()
    assert shown(run_folder.path, capsys)[0] == "job 4711: step 5, 1 node, nothing told for 60.0 min"
    run_folder.record(cause="driver_exit", exit_code=0)
    first = shown(run_folder.path, capsys)[0]
    assert first.startswith("job 4711: step 5, 1 node, ended ") and first.endswith(" min ago")
    run_folder.record(cause="driver_exit", exit_code=0, ended_ns=time.time_ns() - 2_400_000_000_000)
    assert shown(run_folder.path, capsys)[0] == "job 4711: step 5, 1 node, ended 40.0 min ago"


def test_who_tells_the_steps_and_what_is_heard(
    run_folder: RunFolder, capsys: pytest.CaptureFixture[str]
) -> None:
    write_summary(run_folder.path, "4711", healthy(1, 5, ranks=2))
    summary = run_folder.path / "recorder" / "summary.json"
    told = json.loads(summary.read_text()) | {"by": "verl 0.9.1\x1b[31m", "not_seen": ["verl: verl.trainer"]}
    summary.write_text(json.dumps(told))
    run_folder.record()
    [line] = [line for line in shown(run_folder.path, capsys, 400) if line.startswith("heard: ")]
    assert line.startswith("heard: verl 0.9.1�[31m: steps 1 to 5; phases ") and "; roles " in line, line
    assert line.endswith("not heard: 1 place that the adapter did not find"), line


def test_noise_is_no_mountain() -> None:
    assert sparkline([10.0, 10.1, 9.9, 10.0]) == "████"
    assert sparkline([0.0, 5.0, 10.0]) == "▁▅█"
    assert sparkline([]) == "" and sparkline([0.0, 0.0]) == "▁▁"


def test_columns_that_nothing_fills_are_left_out(
    run_folder: RunFolder, capsys: pytest.CaptureFixture[str]
) -> None:
    """At 60 columns those of GPUs left no room for the rest, on nodes without GPUs too."""
    run_folder.record()
    write_summary(run_folder.path, "4711", healthy(1, 5, ranks=2))
    lines = shown(run_folder.path, capsys, columns=60)
    nodes = lines[lines.index("Nodes") + 1]
    assert nodes.split() == ["node", "CPU", "memory", "net", "disk"]


def test_q_ends_it_and_the_terminal_is_as_before(run_folder: RunFolder) -> None:
    run_folder.record()
    write_summary(run_folder.path, "4711", healthy(1, 5, ranks=2))
    screen, terminal = pty.openpty()
    line = [sys.executable, "-m", "rlprof_ops", "top", str(run_folder.path), "--every", "600"]
    sources = str(Path(__file__).parents[2] / "python")
    process = subprocess.Popen(
        line, stdin=terminal, stdout=terminal, stderr=terminal,
        env={**os.environ, "PYTHONPATH": sources, "TERM": "xterm"},
    )  # fmt: skip
    os.close(terminal)
    try:
        seen = b""
        until = time.monotonic() + 60
        while b"Roles" not in seen and time.monotonic() < until:
            if select.select([screen], [], [], 1)[0]:
                seen += os.read(screen, 65536)
        assert b"step 5" in seen, seen
        os.write(screen, b"x")
        os.write(screen, b"q")
        with pytest.raises(OSError):  # the terminal has closed
            while select.select([screen], [], [], 30)[0]:
                seen += os.read(screen, 65536)
        assert process.wait(60) == 0
        assert b"\x1b[?1049l" in seen, "the screen that was there before is back"
    finally:
        process.kill()
        process.wait()
        os.close(screen)
