"""What the head knows of the other nodes of its job: their latest messages, and waiting for them."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterable
from dataclasses import dataclass

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

_OF_A_STATE = (Joined, RayUp, Failed, Ending, ProfilersDone, Drained, Lost)


@dataclass(frozen=True)
class LatestWord:
    """A node's latest message, and where it is."""

    latest: Message
    ip: str = ""

    def has_said(self, *kinds: type[Message]) -> bool:
        return isinstance(self.latest, kinds)


class OtherNodes:
    """The nodes that joined, each in its latest state. `changed` is set by every message."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._states: dict[str, LatestWord] = {}
        self.changed = asyncio.Event()

    def __len__(self) -> int:
        return len(self._states)

    def receive(self, node: str, message: Message) -> None:
        """Take a node's message. What comes after a failure, or a link that breaks after the node's end, says
        nothing new.
        """
        known = self._states.get(node)
        final = (Failed, Drained) if isinstance(message, Lost) else (Failed,)
        if known is not None and known.has_said(*final) and not isinstance(message, Joined):
            return
        if isinstance(message, _OF_A_STATE):
            ip = message.ip if isinstance(message, Joined) else known.ip if known else ""
            self._states[node] = LatestWord(message, ip)
            self._journal.note(f"node {node}: {said(message)}")
        self.changed.set()

    def expect(self, nodes: Iterable[str]) -> None:
        """Those that a supervisor before had: they join again, or are said to be lost."""
        for node in nodes:
            self._states.setdefault(node, LatestWord(Joined(node, "", again=True)))

    def has_joined(self, node: str) -> bool:
        """Whether this supervisor has heard from it."""
        return node in self._states and bool(self._states[node].ip)

    def have_said(self, node: str, *kinds: type[Message]) -> bool:
        """Whether the latest message of `node` is one of `kinds`; `Lost`: its link broke before its end."""
        return node in self._states and self._states[node].has_said(*kinds)

    def serving(self) -> list[str]:
        """The nodes that take part."""
        return [node for node, state in self._states.items() if _serves(state.latest)]

    def failure(self) -> str:
        """Why a node could not start; "" where all could."""
        failed = (state.latest for state in self._states.values())
        return next((message.reason for message in failed if isinstance(message, Failed)), "")

    def by_ip(self) -> dict[str, str]:
        """The nodes by the addresses that they joined from."""
        return {state.ip: node for node, state in self._states.items()}

    def unheard(self, nodes: list[str]) -> list[str]:
        """Those of `nodes` that never joined."""
        return [node for node in nodes if node not in self._states]

    async def join(self, count: int, seconds: float) -> None:
        """Wait until `count` nodes have joined, for at most `seconds`."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + seconds
        while len(self) < count and loop.time() < deadline:
            await asyncio.sleep(0.1)

    async def reach(self, kinds: tuple[type[Message], ...], seconds: float) -> None:
        """Wait until every node that joined has said one of `kinds` or is lost; say who has not."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + seconds
        while True:
            self.changed.clear()
            behind = [n for n, known in self._states.items() if not known.has_said(*kinds, Lost, Failed)]
            if not behind:
                return
            try:
                await asyncio.wait_for(self.changed.wait(), max(0.01, deadline - loop.time()))
            except asyncio.TimeoutError:
                late = " or ".join(sorted(map(words, kinds)))
                self._journal.say(f"not {late} within {limit(seconds)}: {', '.join(sorted(behind))}")
                return


def _serves(latest: Message) -> bool:
    return isinstance(latest, RayUp) or (isinstance(latest, Joined) and not latest.again)


def words(kind: type[Message]) -> str:
    """A kind of message as a log says it: `ProfilersDone` is `profilers done`."""
    return re.sub(r"(?<!^)(?=[A-Z])", " ", kind.__name__).lower()


def said(message: Message) -> str:
    """A message as a log says it."""
    detail = getattr(message, "reason", "") or getattr(message, "cause", "")
    return words(type(message)) + (f": {detail}" if detail else "")
