"""A job whose node has no room left: it ends as its driver did."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from tests.needs import need
from tests.small_disk import small_disk
from tests.supervisor.one_node import ROOT, OneNode

pytestmark = [pytest.mark.whole, pytest.mark.timeout(300)]

# A training that is done when others have filled the disk of its node.
DRIVER = f"""
import os, pathlib, sys, time
sys.path.insert(0, {str(ROOT)!r})
from tests.needs import need
from tests.small_disk import fill
from tests.supervisor.trained import train
train(0)
print("trained", flush=True)
if sys.argv[1] != "room":
    fill(pathlib.Path(os.environ["RLPROF_NODE_DIR"]).parent / "ballast")
if sys.argv[1] == "no supervisor":
    pathlib.Path("full").touch()
    while not pathlib.Path("go").exists():
        time.sleep(0.02)
sys.exit(int(sys.argv[2]))
"""


@pytest.mark.parametrize("code", [0, 5])
@pytest.mark.parametrize("left", ["room", "nothing", "no supervisor"])
def test_the_job_ends_as_its_driver_did(tmp_path: Path, left: str, code: int):
    base = tmp_path / "job"
    (tmp_path / "train.py").write_text(DRIVER)
    command = f"{sys.executable} {tmp_path / 'train.py'} '{left}' {code}"
    with small_disk(tmp_path / "disk", "16m") as disk:
        node = OneNode.start(base, COMMAND=command, RLPROF_NODE_ROOT=str(disk))
        try:
            if left == "no supervisor":
                node.wait_for("full")
                node.kill_supervisor()
                (base / "go").touch()
            assert node.code(120) == code, node.output()
        finally:
            node.end()
        ended = json.loads(node.run.run_json.read_text())["end"]
    assert ended["cause"] == "driver_exit", (ended, node.output())
    assert "trained" in (node.run.logs / "driver.log").read_text()
    assert [each.state for each in node.manifest().captures] == ["ok"], node.output()


# One that profiles itself and prints in every step, beside others who have left little room.
PROFILED = """
import os, pathlib, sys
from rlprof_ops.runtime import profiler

disk = pathlib.Path(os.environ["RLPROF_NODE_DIR"]).parent
found = os.statvfs(disk)
(disk / "ballast").write_bytes(bytes(found.f_bavail * found.f_frsize - (2 << 20)))
prof = profiler.from_env(worker="w", rank=0)
for step in range(1, 5):
    with prof.step(step):
        print("step", step, flush=True)
prof.close()
sys.exit(6)
"""


def test_a_driver_on_a_node_with_little_room_prints_on_and_its_window_is_missing_for_that(tmp_path: Path):
    need("torch")
    (tmp_path / "train.py").write_text(PROFILED)
    with small_disk(tmp_path / "disk", "40m") as disk:
        command = f"{sys.executable} {tmp_path / 'train.py'}"
        node = OneNode.start(tmp_path / "job", COMMAND=command, RLPROF_NODE_ROOT=str(disk))
        try:
            assert node.code(120) == 6, node.output()
        finally:
            node.end()
    assert (node.run.logs / "driver.log").read_text().count("step ") == 4
    [window] = node.manifest().captures
    assert window.state == "missing" and "4.0 MiB stay free for the program" in window.reason, window
