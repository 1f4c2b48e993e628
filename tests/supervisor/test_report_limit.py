"""The report at a job's end may take its seconds and no more, whatever it is doing."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.supervisor.nodes import node_of, place_of
from tests.waits import wait_until

from rlprof_ops.supervisor.job_end import ClosingCommands, NodeStop


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    try:
        return Path(f"/proc/{pid}/stat").read_text().split()[2] != "Z"
    except OSError:  # it went meanwhile
        return False


def gone(pids: list[int]) -> bool:
    """Whether all of them end within seconds."""
    return wait_until(lambda: not any(map(alive, pids)), 60, lambda: f"{pids} live")


def test_a_report_that_hangs_is_ended_at_its_limit(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    package = tmp_path / "rlprof_ops"
    package.mkdir()
    (package / "__init__.py").touch()
    started = tmp_path / "pid"
    (package / "__main__.py").write_text(
        "import os, subprocess, time\n"
        "importer = subprocess.Popen(['sleep', '300'], start_new_session=True)\n"
        f"open({str(started)!r}, 'w').write(f'{{os.getpid()}} {{importer.pid}}')\ntime.sleep(300)\n"
    )
    place = place_of(tmp_path)
    environment = os.environ | {
        "PYTHONPATH": str(tmp_path),  # of a package in place of ours
        "RLPROF_JOB": "7",
        "RLPROF_NODE_DIR": str(place.folder.path),
    }
    closing = ClosingCommands(
        NodeStop(node_of(place, sessions=False, RLPROF_REPORT_SECONDS="6")), environment
    )
    begun = time.monotonic()
    asyncio.run(closing.within("report", "RLPROF_REPORT_SECONDS", "rlprof report /run", 600))
    assert 6 <= time.monotonic() - begun < 60
    assert "report not done within 6 s; run rlprof report /run" in capsys.readouterr().err
    assert gone([int(pid) for pid in started.read_text().split()])


def test_workers_of_a_report_end_with_it(tmp_path: Path) -> None:
    """A worker in the middle of a large file does not outlive the report that was killed."""
    pytest.importorskip("msgspec")
    script = tmp_path / "report.py"
    script.write_text(
        "import os, sys, time\nfrom pathlib import Path\nfrom rlprof_ops.analyze.run import engine\nfrom"
        " rlprof_ops.analyze.run.identity import ReportFile\ndef stuck(root, report, cache):\n    (root /"
        " f'pid{os.getpid()}').touch()\n    time.sleep(300)\nif __name__ == '__main__':\n   "
        " engine.summarise_file = stuck\n    reports = [ReportFile(f'{i}.json', 'torch', 'w', i, '', None,"
        " None, None, None, 1) for i in range(2)]\n    engine.summarise_all(Path(sys.argv[1]), reports,"
        " workers=2)\n"
    )
    report = subprocess.Popen([sys.executable, str(script), str(tmp_path)])
    try:
        wait_until(lambda: len(list(tmp_path.glob("pid*"))) == 2)
        workers = [int(path.name[3:]) for path in tmp_path.glob("pid*")]
        assert all(map(alive, workers))
    finally:
        report.send_signal(signal.SIGKILL)
        report.wait()
    assert gone(workers)
