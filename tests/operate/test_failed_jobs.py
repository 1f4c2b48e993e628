"""A failed job of each kind on a real Slurm: the last ten lines of `rlprof submit --wait` name the cause."""

from __future__ import annotations

import re
import shlex
import sys
from pathlib import Path

import pytest

from tests.operate.login import Login
from tests.waits import wait_until

pytestmark = [pytest.mark.slurm, pytest.mark.ray, pytest.mark.timeout(600)]
ACTOR = """
import os, pathlib, time, ray
ray.init(address="auto", logging_level="ERROR")
actor = ray.remote(num_cpus=64)(type("Big", (), {"f": lambda self: 1})).remote()
log, until = pathlib.Path(os.environ["RLPROF_RUN_DIR"], "logs/head.log"), time.monotonic() + 200
while "no node has that" not in log.read_text() and time.monotonic() < until:
    time.sleep(0.2)
ray.get(actor.f.remote(), timeout=1)
"""


@pytest.fixture
def me(slurm):
    me = Login(slurm, slurm.shared / "my project")
    me.env["PYTHONPATH"] = str(Path(__file__).parents[2] / "python")
    return me


def last_ten(me: Login, *words: str, code: int, nodes: str = "1") -> str:
    said = me.type("submit", "-N", nodes, "--wait", *words, code=code, timeout=450)
    assert "Traceback" not in said.replace("  Traceback", "")  # the driver's own is quoted
    return "\n".join(said.splitlines()[-10:])


def test_a_python_without_pyyaml(me):
    python = me.folder / "python"
    python.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -S "$@"\n')
    python.chmod(0o755)
    words = ("--set", f"RLPROF_PYTHON={python}", "--", "true")
    assert re.search(r"lacks PyYAML: install pyyaml there, or set RLPROF_VENV", last_ten(me, *words, code=2))


def test_a_driver_that_raises(me):
    program = "raise RuntimeError('the loss is NaN')"
    said = last_ten(me, "--", "python", "-c", program, code=1)
    assert "RuntimeError: the loss is NaN" in said
    assert "driver.log" in said


def test_an_actor_that_waits_for_resources_nobody_has(me):
    (me.folder / "train.py").write_text(ACTOR)
    said = last_ten(me, "--cpus-per-task=8", "--", "python", "train.py", code=1)
    assert "an actor or task asks for 64 CPU, and no node has that (the largest has 8 CPU)" in said


def test_a_container_that_does_not_start(me):
    settings = ("--set", "RLPROF_CONTAINER_RUNTIME=apptainer", "--container", "/no/such/image.sif")
    said = last_ten(me, *settings, "--", "true", code=2)
    assert "apptainer" in said and "No such file" in said


def test_a_full_disk(me, slurm):
    """The shared folder runs full while the driver works on it, and stays full."""
    program = (
        "import shutil, time; print('begun', flush=True)\n"
        "while shutil.disk_usage('.').free > 1 << 20: time.sleep(0.2)\n"
        "open('big', 'wb').write(bytes(1 << 26))"
    )
    # The last sync tries again for its share of the drain.
    words = ("--wait", "--set", "RLPROF_DRAIN_SECONDS=20", "--", "python", "-c", program)
    process = me.start("submit", "-N", "1", *words)
    try:
        driver = wait_for_driver(me)
        slurm.fill()
        out, _ = process.communicate(timeout=450)
    finally:
        slurm.restore()
        process.kill()
    assert process.returncode == 1, out
    assert driver and "No space left on device" in "\n".join(out.splitlines()[-10:]), out


def wait_for_driver(me: Login) -> Path:
    def begun() -> Path | None:
        logs = me.folder.glob("*-logs/logs/driver.log")
        return next((log for log in logs if "begun" in log.read_text()), None)

    return wait_until(begun, 200, "the driver did not begin", pause_s=0.1)
