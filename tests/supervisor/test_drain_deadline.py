"""What a person is told of the time that is left is what happens: a drain in which everything hangs ends with
its budget, and what comes after takes no more than Slurm leaves.
"""

from __future__ import annotations

import asyncio
import os
import sys
import threading
import time
from pathlib import Path

import pytest
from tests.supervisor.nodes import node_of, place_of

from rlprof_ops.collect.drain.sequence import Budget, DrainSequence, DrainStep
from rlprof_ops.job.node_context import NodeContext
from rlprof_ops.supervisor.job_end import ClosingCommands, NodeStop
from rlprof_ops.supervisor.node import helper_processes

DEAF = "import signal, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\ntime.sleep(600)"


@pytest.fixture
def place(tmp_path: Path) -> NodeContext:
    return place_of(tmp_path)


@pytest.fixture
def all_hangs(monkeypatch):
    """Every step of the drain, Ray's end, the sync and the storage; all are let go in the end."""
    released = threading.Event()

    def hang(*_: object, **__: object) -> None:
        released.wait(120)

    for phase in ("before_ray_stops", "after_ray_stopped"):
        steps = list(getattr(DrainSequence(Path("/n"), Path("/r"), "n1", "7"), phase)())
        hanging = [DrainStep(step.name, hang) for step in steps]
        monkeypatch.setattr(DrainSequence, phase, lambda self, *_, hanging=hanging: iter(hanging))
    monkeypatch.setattr(DrainSequence, "write_record", hang)
    monkeypatch.setattr(DrainSequence, "clear", hang)
    monkeypatch.setattr(helper_processes, "sync_command", lambda *_: [sys.executable, "-c", DEAF])
    yield
    released.set()


@pytest.mark.timeout(120)
def test_a_drain_in_which_everything_hangs_ends_with_its_budget(place, all_hangs):
    node = node_of(place, lambda: dict(os.environ), sessions=True)

    async def ray_hangs() -> None:
        await asyncio.sleep(600)

    async def end() -> float:
        node.ray.stop = ray_hangs
        node.sync.begin()
        while node.sync.process is None:
            await asyncio.sleep(0.01)
        stop = NodeStop(node)
        began = time.monotonic()
        budget = Budget(10)
        await stop.close_profilers(budget)
        await stop.finish(budget)
        return time.monotonic() - began

    took_s = asyncio.run(end())
    assert took_s < 13, f"{took_s:.1f} s of 10"  # before: 33 s
    assert node.sync.process is not None and node.sync.process.returncode is not None, "the sync still runs"


def test_after_a_drain_no_command_begins_that_slurm_would_cut_off(place, capsys):
    closing = ClosingCommands(NodeStop(node_of(place, sessions=False)), os.environ)
    asyncio.run(closing.harvest(left_s=0.5))
    assert (
        f"no time is left for the harvest; run scripts/harvest.sh {place.run.path}" in capsys.readouterr().err
    )
    assert not (place.run.path / "manifest.json").exists()
