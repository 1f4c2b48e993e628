"""A task that ends while the cluster starts is a failed start, with what srun said of it."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from tests.supervisor.nodes import node_of, place_of

from rlprof_ops.errors import RlprofError
from rlprof_ops.supervisor import other_nodes
from rlprof_ops.supervisor.control_channel import Failed
from rlprof_ops.supervisor.head import Head


def test_the_words_of_a_task_are_told_once(tmp_path, monkeypatch):
    monkeypatch.setattr(other_nodes, "_POLL_SECONDS", 0.01)
    monkeypatch.setattr(other_nodes, "_JOINING_SECONDS", 0.01)
    (tmp_path / "ended_n2").write_text("Exited with exit code 1\n\npyxis: no such image\n")
    (tmp_path / "ended_n3.tmp").write_text("half")
    (tmp_path / "capture-1.json").write_text("{}")
    told: list[tuple[str, str]] = []

    async def watch() -> None:
        watching = asyncio.create_task(
            other_nodes.watch_ended_tasks(tmp_path, lambda *words: told.append(words))
        )
        for _ in range(3000):
            await asyncio.sleep(0.02)
            if told:
                break
        await asyncio.sleep(0.1)
        watching.cancel()

    asyncio.run(watch())
    assert told == [("n2", "Exited with exit code 1\n  pyxis: no such image")]


def head(base: Path, **knobs: str) -> Head:
    base.mkdir(exist_ok=True)
    return Head(node_of(place_of(base, "n1", "n2", "n3"), **knobs))


def test_it_ends_the_start_unless_the_node_has_said_more_itself_or_may_be_missing(tmp_path):
    one = head(tmp_path)
    one.task_ended("somebody", "Killed")
    assert one.others.failure() == ""
    one.on_message("n2", Failed("node n2: SETUP_COMMAND ended with exit code 9"))
    one.task_ended("n2", "Exited with exit code 1")
    assert one.others.failure() == "node n2: SETUP_COMMAND ended with exit code 9"

    other = head(tmp_path / "other")
    other.task_ended("n3", "Exited with exit code 1\n  pyxis: no such image")
    with pytest.raises(RlprofError, match="node n3: its task ended before the cluster was up: Exited with"):
        asyncio.run(other.unless_ordered(asyncio.sleep(30)))

    spare = head(tmp_path / "spare", RLPROF_MIN_NODES="2")
    spare.task_ended("n3", "Exited with exit code 1")
    assert asyncio.run(spare.unless_ordered(asyncio.sleep(0.2, "started"))) == "started"
