"""The supervisor of a node that is not the head: join, keep Ray up, end when told or when the head is
gone.
"""

from __future__ import annotations

import asyncio
import os
import time
from typing import Any

from rlprof_ops.collect.drain import drain_steps
from rlprof_ops.errors import RlprofError
from rlprof_ops.host import clock_probe
from rlprof_ops.host.background import in_background
from rlprof_ops.job.end_cause import EndCause
from rlprof_ops.supervisor import job_end
from rlprof_ops.supervisor.capture_relay import CaptureAsked
from rlprof_ops.supervisor.control_channel import (
    Drain,
    Drained,
    Ending,
    Failed,
    Joined,
    Message,
    NodeLink,
    ProfilersDone,
    RayUp,
    StopRay,
)
from rlprof_ops.supervisor.head import REJOIN_SECONDS
from rlprof_ops.supervisor.node.helper_processes import Recorded
from rlprof_ops.supervisor.node.node import Node
from rlprof_ops.supervisor.node.node_state import End, first_of
from rlprof_ops.supervisor.node.ray_process import RayProcess
from rlprof_ops.supervisor.steps.step_relay import StepMessage

_PROBE_SECONDS = 15.0
_OF_A_STATE = (RayUp, Failed, Ending, ProfilersDone, Drained)


class Worker:
    """One node beside the head. Make it in the loop that runs."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.may_stop = asyncio.Event()
        self.drain_order: asyncio.Future[Drain] = asyncio.get_running_loop().create_future()
        self._link: NodeLink | None = None
        self._joined_before = False
        self._latest: Message | None = None  # of its states, for a head that is new

    async def run(self) -> int:
        """0 when the node served until the job's end, or has told the head why it cannot; the head decides
        what follows.

        Raises RlprofError when it did not even reach the head.
        """
        node, state = self.node, self.node.state
        deadline = asyncio.get_running_loop().time() + node.settings.number("RLPROF_READY_SECONDS")
        if not node.before:
            await self._first_link(deadline)
        linked = asyncio.create_task(self._stay_linked())
        probing = asyncio.create_task(self.probe_clock("start"))
        try:
            await node.serve_steps(self.send)
            if state.end is None:
                cause = await first_of(self._ended(linked), self._serve(deadline))
                state.end = End(cause, 0, time.time())
                state.save()
            else:
                await node.end_what_was_before()
            await probing
        except RlprofError as error:
            node.journal.note(str(error))
            await self.send(Failed(str(error)))
            state.end = End(EndCause.STARTUP_FAILED, 0, time.time())
        finally:
            node.end_watching()
        try:
            await job_end.stop_worker(self, state.end)
        finally:
            linked.cancel()
            if self._link is not None:
                self._link.close()
        return 0

    # ---- the link to the head

    async def send(self, message: Message) -> None:
        """Send to the head; what the node has come to also to one that takes its place."""
        if isinstance(message, _OF_A_STATE) and not isinstance(self._latest, Failed):
            self._latest = message
        if self._link is not None:
            await self._link.send(message)

    async def _join(self, deadline: float) -> NodeLink:
        """A new link to the head. Raises TimeoutError."""
        node, place = self.node, self.node.place
        before = "" if self._joined_before else node.before
        hello = Joined(place.node, place.ip, os.getpid(), before, str(place.folder.path))
        link = await NodeLink.join(place.head_ip, place.control_port, place.token, hello, deadline)
        self._joined_before = True
        return link

    async def _first_link(self, deadline: float) -> None:
        """Raises RlprofError when the head does not answer, or an order to end comes first."""
        node, place = self.node, self.node.place
        told = node.order.raise_when_given(f"the head answered node {place.node}")
        try:
            self._link = await first_of(self._join(deadline), told)
        except (TimeoutError, RlprofError) as error:
            drain_steps.clear(place.folder.path, say=node.journal.note)
            raise (
                error if isinstance(error, RlprofError) else RlprofError(f"node {place.node}: {error}")
            ) from error

    async def _stay_linked(self) -> None:
        """Receive what the head says, over another link where one breaks: the head's supervisor may have been
        killed, and another one be in its place. Returns when the head is gone.
        """
        node = self.node
        while True:
            if self._link is not None:
                await self._link.listen(self._on_message)
                node.journal.note("the link to the head broke: joining again")
                self._link.close()
            try:
                self._link = await self._join(asyncio.get_running_loop().time() + REJOIN_SECONDS)
            except TimeoutError as error:
                self._link = None
                node.journal.say(f"node {node.place.node}: {error}")
                return
            if node.windows is not None:
                node.windows.gap()
            if self._latest is not None:
                await self._link.send(self._latest)
            if node.state.serving:
                node.send_state(self.send)

    def _on_message(self, message: Message) -> None:
        node = self.node
        if node.relay is not None and isinstance(message, StepMessage):
            node.relay.receive(node.place.nodes[0], message)
        if isinstance(message, CaptureAsked):
            node.spawn(node.take_capture(message))
        elif isinstance(message, Drain) and not self.drain_order.done():
            self.drain_order.set_result(message)
        elif isinstance(message, StopRay):
            self.may_stop.set()

    # ---- start

    async def _serve(self, deadline: float) -> EndCause:
        """Everything until this node's Ray ends by itself."""
        node = self.node
        ray = await self._start(deadline)
        node.spawn_watch(node.watch_plugin())
        await ray.gone.wait()
        await node.order.come_late()
        if (cause := self._told()) is not None:
            return cause
        node.journal.say(f"node {node.place.node}: Ray ended here by itself; its last words:\n{ray.tail(5)}")
        return EndCause.RAY_GONE

    async def _ended(self, linked: asyncio.Task[None]) -> EndCause:
        """What ends this node, from the first moment on: the head's order, a signal, the end of the head."""
        ends: set[asyncio.Future[Any]] = {linked, self.drain_order, self.node.order.given}
        await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        return self._told() or EndCause.HEAD_GONE

    def _told(self) -> EndCause | None:
        return EndCause.ORDERED if self.drain_order.done() else self.node.order.cause

    async def _start(self, deadline: float) -> RayProcess:
        """Everything before this node serves, as far as no supervisor before has done it."""
        node, state = self.node, self.node.state
        if state.serving:  # from here on the driver may wait for this node's windows
            await self.send(RayUp())
        await node.end_what_was_before()
        if not state.serving:
            await node.run_setup()
            await self._wait_for_gcs(deadline)

        async def on_recorded(told: dict[str, Any]) -> None:
            if isinstance(told.get("news"), str):
                await self.send(Recorded(told["news"]))

        await node.start_services(self.send, on_recorded)
        ray = await node.ray.find_or_start(deadline)
        if not state.serving:
            state.serving = True
            state.save()
            await self.send(RayUp())
        return ray

    async def _wait_for_gcs(self, deadline: float) -> None:
        """Wait by connecting to the head's GCS; `ray start` itself gives up early and waits long."""
        place = self.node.place
        loop = asyncio.get_running_loop()
        with self.node.journal.phase("wait_for_head"):
            while loop.time() < deadline:
                try:
                    _, writer = await asyncio.wait_for(
                        asyncio.open_connection(place.head_ip, place.gcs_port), 5
                    )
                    writer.close()
                    return
                except (OSError, asyncio.TimeoutError):
                    await asyncio.sleep(0.1)
        raise RlprofError(
            f"node {place.node}: Ray's head at {place.head_ip}:{place.gcs_port} did not come up in time"
        )

    async def probe_clock(self, moment: str) -> None:
        """How far this node's clock is from the head's, for the one timeline; a head that does not answer
        costs little.
        """
        place = self.node.place
        try:
            found = await in_background(
                clock_probe.measure,
                place.head_ip,
                place.control_port,
                place.token.encode(),
                seconds=_PROBE_SECONDS,
            )
        except TimeoutError:
            return
        if found is not None:
            self.node.clock.append(found.to_dict(moment, place.nodes[0]))
