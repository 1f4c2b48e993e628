"""A node as its supervisor has it, for tests that begin nothing."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from rlprof_ops import env_names
from rlprof_ops.job.folders import RunFolder, job_mark, node_folder
from rlprof_ops.job.knobs import Settings, import_path
from rlprof_ops.job.node_context import NodeContext
from rlprof_ops.request import ProfileRequest
from rlprof_ops.supervisor.node.journal import Journal
from rlprof_ops.supervisor.node.node import Node
from rlprof_ops.supervisor.node.node_state import NodeState


def place_of(base: Path, *nodes: str, run: Path | None = None, number: int = 0) -> NodeContext:
    """Node `number` of `nodes`, n1 alone without any; its folders are made."""
    nodes = nodes or ("n1",)
    run_folder = RunFolder(run or base / "run")
    folder = node_folder(base, "7", job_mark({env_names.RUN_DIR: str(run_folder.path)}))
    run_folder.create()
    folder.create()
    return NodeContext(
        "7", nodes[number], "127.0.0.1", "127.0.0.1", 1, 2, number == 0, nodes, run_folder, folder, 0, "token"
    )


def node_of(
    place: NodeContext,
    environment: Callable[[], dict[str, str]] | None = None,
    sessions: bool | None = None,
    **knobs: str,
) -> Node:
    """`environment` and `sessions`: instead of the node's own."""
    never: Any = SimpleNamespace(given=None, cause=None, raise_when_given=lambda before: asyncio.sleep(600))
    name = "head" if place.is_head else place.node
    journal = Journal(
        place.run.logs / f"{name}.log", place.node, time.time(), place.folder.logs / "supervisor.log"
    )
    state = NodeState.make(place.folder.path)
    node = Node(Settings.load(knobs), ProfileRequest(captures=()), place, journal, state, never, Path.cwd())
    if environment is not None:
        node.environment = environment  # type: ignore[method-assign]
    if sessions is not None:
        node.may_profile = lambda: sessions  # type: ignore[method-assign]
    return node


def our_environment() -> dict[str, str]:
    """This process's, with this package."""
    return {**os.environ, "PYTHONPATH": import_path()}
