"""What the head knows of the other nodes of its job: their latest messages, waiting for them, and those whose
task ended before it could say anything.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NoReturn

from rlprof_ops.errors import RlprofError
from rlprof_ops.host.background import in_background
from rlprof_ops.host.contained_dir import ContainedDir
from rlprof_ops.supervisor.control_channel import (
    Drained,
    Ending,
    Failed,
    Joined,
    Lost,
    Message,
    ProfilersDone,
    RayUp,
)
from rlprof_ops.supervisor.node.journal import Journal
from rlprof_ops.words import limit

_PREFIX = "ended_"
_POLL_SECONDS = 0.5
_STORAGE_SECONDS = 600.0  # a thread that hangs is left behind then
_JOINING_SECONDS = 2.0  # for a message of the node's own, which says more
_MOST_BYTES = 1 << 16
_OF_A_STATE = (Joined, RayUp, Failed, Ending, ProfilersDone, Drained, Lost)


class OtherNodes:
    """The nodes that joined, each with its latest message."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._latest: dict[str, Message] = {}
        self._joined: dict[str, Joined] = {}
        self._changed = asyncio.Event()

    def receive(self, node: str, message: Message) -> None:
        """Take a node's message. What comes after a failure, or a link that breaks after the node's end, says
        nothing new.
        """
        final = (Failed, Drained) if isinstance(message, Lost) else (Failed,)
        if self.have_said(node, *final) and not isinstance(message, Joined):
            return
        if isinstance(message, Joined):
            self._joined[node] = message
        if isinstance(message, _OF_A_STATE):
            self._latest[node] = message
            self._journal.note(f"node {node}: {said(message)}")
        self._changed.set()

    def expect(self, nodes: Iterable[str]) -> None:
        """Those that a supervisor before had: they join again, or are said to be lost."""
        for node in nodes:
            self._latest.setdefault(node, Joined(node, ""))

    def has_joined(self, node: str) -> bool:
        """Whether this supervisor has heard from it."""
        return node in self._joined

    def all_have(self, folder: str) -> bool:
        """Whether the node folder has this path on each of them."""
        return all(message.folder == folder for message in self._joined.values())

    def have_said(self, node: str, *kinds: type[Message]) -> bool:
        """Whether the latest message of `node` is one of `kinds`; `Lost`: its link broke before its end."""
        return isinstance(self._latest.get(node), kinds)

    def serving(self) -> list[str]:
        """The nodes that take part: their Ray is up, which the cluster's GCS has told them."""
        return [node for node in self._latest if self.have_said(node, RayUp)]

    def failure(self) -> str:
        """Why a node could not start; "" where all could."""
        return next((told.reason for told in self._latest.values() if isinstance(told, Failed)), "")

    async def _until(self, happened: Callable[[], bool]) -> None:
        while not happened():
            self._changed.clear()
            await self._changed.wait()

    async def fails(self) -> NoReturn:
        """Raise RlprofError once a node has said why it cannot start."""
        await self._until(lambda: bool(self.failure()))
        raise RlprofError(self.failure())

    async def be_up(self, wanted: int, up: Callable[[int], None]) -> None:
        """Wait until `wanted` nodes serve; `up` hears how many do."""

        def enough() -> bool:
            up(len(self.serving()))
            return len(self.serving()) >= wanted

        await self._until(enough)

    def missing(self, nodes: Iterable[str]) -> str:
        """Those of `nodes` that do not serve, for a message."""
        behind = [node for node in nodes if not self.have_said(node, RayUp)]
        silent = [node for node in behind if node not in self._latest]
        text = f"missing: {', '.join(behind)}."
        if silent:
            text += f" Never heard of: {', '.join(silent)} (see logs/<node>.log in the run folder)."
        return text

    async def join(self, count: int, seconds: float) -> None:
        """Wait until `count` nodes have joined, for at most `seconds`."""
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._until(lambda: len(self._latest) >= count), seconds)

    async def reach(self, kinds: tuple[type[Message], ...], seconds: float) -> None:
        """Wait until every node that joined has said one of `kinds` or is lost; say who has not."""

        def behind() -> list[str]:
            return sorted(node for node in self._latest if not self.have_said(node, *kinds, Lost, Failed))

        try:
            await asyncio.wait_for(self._until(lambda: not behind()), max(0.01, seconds))
        except asyncio.TimeoutError:
            late = " or ".join(sorted(map(words, kinds)))
            self._journal.say(f"not {late} within {limit(seconds)}: {', '.join(behind())}")


def words(kind: type[Message]) -> str:
    """A kind of message as a log says it: `ProfilersDone` is `profilers done`."""
    return re.sub(r"(?<!^)(?=[A-Z])", " ", kind.__name__).lower()


def said(message: Message) -> str:
    """A message as a log says it."""
    detail = getattr(message, "reason", "") or getattr(message, "cause", "")
    return words(type(message)) + (f": {detail}" if detail else "")


async def watch_ended_tasks(control: Path, tell: Callable[[str, str], None]) -> None:
    """Until cancelled: tell each node whose task has ended before it joined, and how: a container that does
    not start is told by srun alone, whose words the batch script leaves in the run folder
    (scripts/lib/job.sh, job::_listen_to_srun).
    """
    known: set[str] = set()
    while True:
        await asyncio.sleep(_POLL_SECONDS)
        with contextlib.suppress(OSError, TimeoutError):
            new = await in_background(_newly_ended, control, frozenset(known), seconds=_STORAGE_SECONDS)
            if new:
                await asyncio.sleep(_JOINING_SECONDS)
            for node, how in new.items():
                known.add(node)
                tell(node, how)


def _newly_ended(control: Path, known: frozenset[str]) -> dict[str, str]:
    """Node -> what srun said of its task, and the last words before it."""
    found = {}
    for path in sorted(control.glob(f"{_PREFIX}*")):
        node = path.name.removeprefix(_PREFIX)
        if node in known or path.suffix == ".tmp":
            continue
        with ContainedDir(control) as folder:
            lines = folder.read(path.name, _MOST_BYTES).decode(errors="replace").splitlines()
        found[node] = "\n  ".join(line for line in lines if line.strip())
    return found
