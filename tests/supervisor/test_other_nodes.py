"""What the head knows of the other nodes, from what they say."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

from rlprof_ops.supervisor.control_channel import Drained, Failed, Joined, Lost, ProfilersDone, RayUp
from rlprof_ops.supervisor.node.journal import Journal
from rlprof_ops.supervisor.other_nodes import OtherNodes


def nodes(tmp_path: Path) -> OtherNodes:
    return OtherNodes(Journal(tmp_path / "head.log", "n1", time.time()))


def test_a_node_that_has_drained_is_not_lost_when_its_link_ends(tmp_path: Path) -> None:
    known = nodes(tmp_path)
    for node in ("n2", "n3"):
        known.receive(node, Joined(node, f"10.0.0.{node[1]}"))
        known.receive(node, RayUp())
    assert known.serving() == ["n2", "n3"]
    known.receive("n2", Drained({}))
    known.receive("n2", Lost())
    known.receive("n3", Lost())
    assert [node for node in ("n2", "n3", "n4") if known.have_said(node, Lost)] == ["n3"]
    assert known.serving() == []


def test_the_cluster_is_up_when_enough_nodes_have_said_so(tmp_path: Path) -> None:
    known = nodes(tmp_path)
    for node in ("n2", "n3"):
        known.receive(node, Joined(node, f"10.0.0.{node[1]}"))
    counts: list[int] = []

    async def scene() -> None:
        loop = asyncio.get_running_loop()
        for number, node in enumerate(("n2", "n3"), start=1):
            loop.call_later(0.02 * number, known.receive, node, RayUp())
        await asyncio.wait_for(known.be_up(2, counts.append), 10)

    known.receive("n4", Joined("n4", "10.0.0.4"))
    assert known.missing(["n2", "n5"]) == (
        "missing: n2, n5. Never heard of: n5 (see logs/<node>.log in the run folder)."
    )
    asyncio.run(scene())
    assert sorted(set(counts)) == [0, 1, 2] and known.serving() == ["n2", "n3"]
    assert known.missing(["n2", "n3", "n4"]) == "missing: n4."


def test_a_failed_start_is_told(tmp_path: Path) -> None:
    known = nodes(tmp_path)
    known.receive("n2", Joined("n2", "10.0.0.2"))
    assert known.failure() == ""
    known.receive("n3", Failed("no nsys on n3"))
    assert known.failure() == "no nsys on n3"


def test_who_is_late_is_said_and_the_lost_are_not_waited_for(tmp_path: Path, capsys) -> None:
    async def scene() -> None:
        known = nodes(tmp_path)
        for node in ("n2", "n3", "n4"):
            known.receive(node, Joined(node, ""))
        known.receive("n2", ProfilersDone({}))
        known.receive("n3", Lost())
        await known.reach((ProfilersDone, Drained), 0.05)
        asyncio.get_running_loop().call_later(0.02, known.receive, "n4", Drained({}))
        await known.reach((ProfilersDone, Drained), 30)

    asyncio.run(scene())
    said = capsys.readouterr().err
    assert said.count("not drained or profilers done within") == 1 and said.rstrip().endswith(": n4")
