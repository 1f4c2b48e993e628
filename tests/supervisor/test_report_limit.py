"""The report at a job's end may take its seconds and no more, whatever it is doing."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from rlprof_ops.supervisor.head import Head


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return Path(f"/proc/{pid}/stat").read_text().split()[2] != "Z"


def gone(pids: list[int]) -> bool:
    """Whether all of them end within seconds."""
    deadline = time.monotonic() + 10
    while any(map(alive, pids)) and time.monotonic() < deadline:
        time.sleep(0.1)
    return not any(map(alive, pids))


def test_a_report_that_hangs_is_ended_at_its_limit(tmp_path: Path) -> None:
    package = tmp_path / "rlprof_ops"
    package.mkdir()
    (package / "__init__.py").touch()
    started = tmp_path / "pid"
    (package / "__main__.py").write_text(
        f"import os, time\nopen({str(started)!r}, 'w').write(str(os.getpid()))\ntime.sleep(300)\n"
    )
    said: list[str] = []
    head: Any = SimpleNamespace(
        settings=SimpleNamespace(number=lambda knob: {"RLPROF_REPORT_SECONDS": 2}[knob]),
        place=SimpleNamespace(run=SimpleNamespace(path=tmp_path)),
        environment=lambda: os.environ | {"PYTHONPATH": str(tmp_path)},
        journal=SimpleNamespace(say=said.append),
    )
    begun = time.monotonic()
    asyncio.run(Head._own_command(head, "report", "RLPROF_REPORT_SECONDS", "rlprof report /run"))
    assert 2 <= time.monotonic() - begun < 8
    assert said == ["report not done within 2 s; run rlprof report /run"]
    assert gone([int(started.read_text())])


def test_workers_of_a_report_end_with_it(tmp_path: Path) -> None:
    """A worker in the middle of a large file does not outlive the report that was killed."""
    pytest.importorskip("msgspec")
    script = tmp_path / "report.py"
    script.write_text(
        "import os, sys, time\nfrom pathlib import Path\nfrom rlprof_ops.analyze.run import engine\nfrom"
        " rlprof_ops.analyze.run.identity import Report\ndef stuck(root, report, cache):\n    (root /"
        " f'pid{os.getpid()}').touch()\n    time.sleep(300)\nif __name__ == '__main__':\n   "
        " engine.summarise_file = stuck\n    reports = [Report(f'{i}.json', 'torch', 'w', i, '', None, None,"
        " None, None, 1) for i in range(2)]\n    engine.summarise_all(Path(sys.argv[1]), reports,"
        " workers=2)\n"
    )
    report = subprocess.Popen([sys.executable, str(script), str(tmp_path)])
    try:
        workers: list[int] = []
        deadline = time.monotonic() + 60
        while len(workers) < 2 and time.monotonic() < deadline:
            workers = [int(path.name[3:]) for path in tmp_path.glob("pid*")]
            time.sleep(0.1)
        assert len(workers) == 2 and all(map(alive, workers))
    finally:
        report.send_signal(signal.SIGKILL)
        report.wait()
    assert gone(workers)
