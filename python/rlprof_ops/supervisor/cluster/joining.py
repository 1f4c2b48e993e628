"""The head's wait for its cluster: until enough nodes are alive, or one says why it cannot be."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from rlprof_ops.errors import RlprofError
from rlprof_ops.job.knobs import Settings
from rlprof_ops.job.node_context import NodeContext
from rlprof_ops.supervisor.cluster.other_nodes import OtherNodes
from rlprof_ops.supervisor.end_order import EndOrder, ToldToEnd
from rlprof_ops.supervisor.gcs.gcs_watcher import GcsWatcher
from rlprof_ops.supervisor.node.journal import Journal
from rlprof_ops.supervisor.node.ray_process import plugin_message

_Result = TypeVar("_Result")


class Joining:
    """The nodes of one job while its cluster starts."""

    def __init__(self, place: NodeContext, settings: Settings, journal: Journal, nodes: OtherNodes) -> None:
        self._place, self._settings, self._journal, self._nodes = place, settings, journal, nodes

    async def race(self, work: Awaitable[_Result], order: EndOrder) -> _Result:
        """What `work` gives. Raises RlprofError when a node reports a failed start, ToldToEnd when an order
        to end comes first.
        """
        task = asyncio.ensure_future(work)
        try:
            while not task.done():
                self._nodes.changed.clear()
                self.raise_failures()
                changed = asyncio.ensure_future(self._nodes.changed.wait())
                ends: set[asyncio.Future[Any]] = {task, changed, order.given}
                await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
                changed.cancel()
                if order.cause is not None and not task.done():
                    raise ToldToEnd(order.cause, "the cluster was up")
            return await task
        finally:
            task.cancel()

    def raise_failures(self) -> None:
        """Raises RlprofError when a node cannot start and the job needs all of them."""
        reason = "" if self._settings.number("RLPROF_MIN_NODES") else self._nodes.failure()
        if reason:
            raise RlprofError(reason)

    async def all_joined(self, asking: GcsWatcher, deadline: float, up: Callable[[int], None]) -> None:
        """Wait until enough nodes are alive; `up` hears how many are. Raises RlprofError naming those that
        are missing, or the plugin's fault.
        """
        nodes = self._place.nodes
        wanted = self._settings.number("RLPROF_MIN_NODES") or len(nodes)
        alive: list[str] = []
        while len(alive) < wanted:
            try:
                problem, answer = await asking.answers(deadline)
            except asyncio.TimeoutError:
                raise RlprofError(self._missing(alive, wanted)) from None
            if problem is not None:
                raise RlprofError(plugin_message(self._place.node, problem))
            alive = answer or []
            self._journal.note(f"{len(alive)} of {len(nodes)} nodes are up")
            up(len(alive))
        self._journal.say(f"{len(alive)} of {len(nodes)} nodes are up")

    def _missing(self, alive: list[str], wanted: int) -> str:
        place = self._place
        by_ip = self._nodes.by_ip() | {place.ip: place.node}
        there = {by_ip.get(ip) for ip in alive}
        missing = [node for node in place.nodes if node not in there]
        silent = self._nodes.unheard([node for node in missing if node != place.node])
        text = (
            f"after {self._settings['RLPROF_READY_SECONDS']} s (RLPROF_READY_SECONDS) {len(alive)} of"
            f" {wanted} nodes are up; missing: {', '.join(missing)}."
        )
        if silent:
            text += f" Never heard of: {', '.join(silent)} (see logs/<node>.log in the run folder)."
        return text
