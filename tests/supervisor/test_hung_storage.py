"""Storage that hangs, which is worse than storage that fails: no event loop waits for it, the drain goes on,
and the process ends when its record says so.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.hung import hung
from tests.needs import need
from tests.supervisor.nodes import node_of, our_environment, place_of

from rlprof_ops import env_names
from rlprof_ops.collect.drain.sequence import Budget
from rlprof_ops.host.background import BackgroundWriter, in_background
from rlprof_ops.job.end_cause import EndCause
from rlprof_ops.job.knobs import import_path
from rlprof_ops.job.node_context import NodeContext
from rlprof_ops.supervisor import job_end
from rlprof_ops.supervisor.control_channel import Joined
from rlprof_ops.supervisor.head import Head
from rlprof_ops.supervisor.job_end import ClosingCommands, NodeStop
from rlprof_ops.supervisor.run_record import RunRecord


@pytest.fixture
def place(tmp_path: Path) -> NodeContext:
    need("fuse")
    return place_of(tmp_path)


def test_nothing_reads_the_run_folder_of_a_storage_that_hangs(place, monkeypatch, capsys):
    """Not even SIGKILL may end who does."""
    monkeypatch.setattr(job_end, "_LOOK_SECONDS", 60.0)
    closing = ClosingCommands(NodeStop(node_of(place, sessions=False)), os.environ)
    assert asyncio.run(closing.storage_answers())
    monkeypatch.setattr(job_end, "_LOOK_SECONDS", 1.0)
    with hung(place.run.path):
        assert not asyncio.run(closing.storage_answers())
    assert f"when it does, run scripts/harvest.sh {place.run.path}" in capsys.readouterr().err


def test_a_drain_goes_on_and_its_event_loop_never_waits(place):
    report = place.folder.path / "tmp/w_rank0_step3-4_n1_7.nsys-rep"
    report.write_bytes(b"report")

    async def scene() -> float:
        node = node_of(place, our_environment, sessions=True)
        journal = node.journal
        record = RunRecord.of(place, node.settings, node.request, node.state, journal.writer)
        record.save()
        journal.writer.flush(10)
        longest = 0.0

        async def watch() -> None:
            nonlocal longest
            while True:
                before = time.monotonic()
                await asyncio.sleep(0.01)
                longest = max(longest, time.monotonic() - before)

        with hung(place.run.path):
            watching = asyncio.create_task(watch())
            record.ending(EndCause.DRIVER_EXIT)
            journal.say("the storage hangs")
            ending = NodeStop(node)
            budget = Budget(16)
            await ending.close_profilers(budget)
            await ending.finish(budget)
            watching.cancel()
        return longest

    began = time.monotonic()
    longest = asyncio.run(scene())

    assert longest < 5.0  # who waits for that storage waits for ever
    assert time.monotonic() - began < 40
    # All of it is on the node, for the command that the job's output names.
    assert (place.folder.path / "profiles/nsight/w/rank0" / report.name).read_bytes() == b"report"
    assert json.loads((place.folder.keep / "run.json").read_text())["end"]["cause"] == "driver_exit"
    assert json.loads((place.folder.keep / "n1.json").read_text())["role"] == "head"
    assert "the storage hangs" in (place.folder.logs / "supervisor.log").read_text()


def test_the_process_ends_although_threads_hang(tmp_path):
    need("fuse")
    target = tmp_path / "run"
    target.mkdir()
    program = f"""
import asyncio, os, sys
from pathlib import Path
from rlprof_ops.host.background import BackgroundWriter, in_background
async def main():
    writer = BackgroundWriter()
    writer.append(Path({str(target)!r}) / "log", b"line")
    try:
        await in_background(os.stat, {str(target)!r} + "/x", seconds=0.5)
    except TimeoutError:
        print("timed out", flush=True)
    assert not writer.flush(0.5)
asyncio.run(main())
"""
    with hung(target):
        began = time.monotonic()
        done = subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, "PYTHONPATH": import_path()},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
    assert (done.returncode, done.stdout) == (0, "timed out\n"), done.stderr
    assert time.monotonic() - began < 60


def test_a_writer_keeps_the_order_and_the_latest(tmp_path):
    writer, errors = BackgroundWriter(), []
    for number in range(200):
        writer.put(tmp_path / "run.json", b"%d" % number, errors.append)
        writer.append(tmp_path / "log", b"%d\n" % number)
    assert writer.flush(60)
    assert (tmp_path / "run.json").read_bytes() == b"199"
    assert (tmp_path / "log").read_bytes() == b"".join(b"%d\n" % number for number in range(200))
    assert set(errors) == {None}
    writer.put(tmp_path / "no/such/folder", b"", errors.append)
    assert writer.flush(60) and isinstance(errors[-1], FileNotFoundError)


def test_work_in_the_background_gives_its_result_or_its_error():
    assert asyncio.run(in_background(lambda a, b: a + b, 1, b=2, seconds=60)) == 3
    with pytest.raises(ZeroDivisionError):
        asyncio.run(in_background(lambda: 1 // 0, seconds=60))


TOKEN = """
from ray._raylet import AuthenticationTokenLoader

print(AuthenticationTokenLoader.instance().get_token_for_http_header())
"""


@pytest.mark.ray
def test_a_new_process_of_ray_has_its_token_whatever_the_storage_does(place):
    """By Ray's own reader of it."""
    node = node_of(place)
    node.state.token = "0123456789abcdef" * 2
    env = node.environment() | {"PYTHONPATH": ""}
    with hung(place.run.path):
        done = subprocess.run(
            [sys.executable, "-c", TOKEN], env=env, capture_output=True, text=True, timeout=240
        )
    assert node.state.token in done.stdout, done.stderr
    assert Path(env[env_names.RAY_TOKEN_PATH]).stat().st_mode & 0o777 == 0o600


def test_a_driver_hands_on_a_token_that_all_nodes_have(place):
    head = Head(node_of(place))
    own, shared = str(place.folder.path), str(place.run.token)
    head.others.receive("n2", Joined("n2", "10.0.0.2", folder=own))
    assert head._driver_environment()[env_names.RAY_TOKEN_PATH].startswith(f"{own}/")
    head.others.receive("n3", Joined("n3", "10.0.0.3", folder=f"{own}~2"))
    assert head._driver_environment()[env_names.RAY_TOKEN_PATH] == shared
