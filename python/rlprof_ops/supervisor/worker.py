"""The supervisor of a node that is not the head: join, keep Ray up, end when told or when the head is
gone.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Coroutine
from typing import Any

from rlprof_ops.collect.drain import steps
from rlprof_ops.collect.drain.sequence import Budget
from rlprof_ops.errors import RlprofError
from rlprof_ops.host import clock_probe
from rlprof_ops.host.background import in_background
from rlprof_ops.job.end_cause import EndCause
from rlprof_ops.job.knobs import Settings
from rlprof_ops.job.node_context import NodeContext
from rlprof_ops.request import ProfileRequest
from rlprof_ops.supervisor.base import Supervisor
from rlprof_ops.supervisor.beside.recording import Recorded
from rlprof_ops.supervisor.capture_relay import CaptureAsked
from rlprof_ops.supervisor.control_channel import (
    Drain,
    Drained,
    Ending,
    Failed,
    Joined,
    Message,
    Node,
    ProfilersDone,
    RayUp,
    StopRay,
)
from rlprof_ops.supervisor.node_drain import Journal
from rlprof_ops.supervisor.steps.step_relay import KINDS as STEP_KINDS
from rlprof_ops.supervisor.takeover.handover import REJOIN_SECONDS, Handover, place_of
from rlprof_ops.supervisor.takeover.reins import Reins

_HEAR_SECONDS = 1.0
_PROBE_SECONDS = 15.0


class Worker(Supervisor):
    """One node beside the head."""

    def __init__(
        self,
        settings: Settings,
        request: ProfileRequest,
        place: NodeContext,
        journal: Journal,
        reins: Reins | None = None,
    ) -> None:
        super().__init__(settings, request, place, journal, reins)
        self._head: Node | None = None
        self._serves = self._ends = False
        self._may_stop = asyncio.Event()
        self._demands: list[asyncio.Task[None]] = []
        self._drain_ordered: asyncio.Future[Drain] | None = None  # a future needs the loop that runs
        self._listening: asyncio.Task[None] | None = None

    async def run(self) -> int:
        """0 when the node served until the job's end, or has told the head why it cannot; the head decides
        what follows.

        Raises RlprofError when it did not even reach the head.
        """
        self.listen_to_signals()
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self.settings.number("RLPROF_READY_SECONDS")
        if not self.reins.before:
            setup = asyncio.create_task(self.run_setup())
            self._head = await self._join(deadline)
            starting = self._start(setup, deadline)
        else:
            starting = self._take_over()
        try:
            return await self._serve(starting)
        except RlprofError as error:
            self.journal.note(str(error))
            await self._tell(Failed(str(error)))
            seconds = float(self.settings.number("RLPROF_DRAIN_SECONDS"))
            await self.files.finish(Budget(seconds), self.stop_node)
            return 0
        finally:
            if self._head is not None:
                self._head.close()

    async def _tell(self, message: Message) -> None:
        """Send to the head; nothing happens while the link is broken."""
        if self._head is not None:
            await self._head.tell(message)

    async def _link(self, deadline: float) -> Node:
        """A new link to the head. Raises TimeoutError."""
        place = self.place
        again = self._serves or bool(self.reins.before)
        before = self.reins.before if self._head is None else ""
        hello = Joined(place.node, place.ip, os.getpid(), again, before)
        return await Node.join(place.head_ip, place.control_port, place.token, hello, deadline)

    async def _join(self, deadline: float) -> Node:
        """The first link to the head. Raises RlprofError when the head does not answer, or an order to end
        comes first.
        """
        place = self.place
        assert self.shutdown_requested is not None
        joining = asyncio.create_task(self._link(deadline))
        either: set[asyncio.Future[Any]] = {joining, self.shutdown_requested}
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        try:
            if not joining.done():
                joining.cancel()
                raise RlprofError(
                    f"told to end ({self.shutdown_requested.result()}) before the head answered"
                )
            return joining.result()
        except (TimeoutError, RlprofError) as error:
            steps.clear(place.folder.path, say=self.journal.note)
            raise RlprofError(f"node {place.node}: {error}") from error

    async def _serve(self, start: Coroutine[Any, Any, None]) -> int:
        """Everything between joining and the last message. An order to end is heard from the first moment
        on.
        """
        self._drain_ordered = asyncio.get_running_loop().create_future()
        self._listening = asyncio.create_task(self._stay_linked())
        probing = asyncio.create_task(self._probe_clock("start"))
        starting = asyncio.create_task(start)
        cause = await self._first_of(starting)
        plugin = asyncio.create_task(self.watch_plugin())
        if cause is None:
            starting.result()
            assert self.ray is not None
            self._serves = True
            self.hand_over(
                Handover(
                    place_of(self.ray.process.pid),
                    None,
                    self.files.started_ns,
                    phases_s=self.journal.phases_s,
                )
            )
            ray_gone = asyncio.create_task(self.ray.gone.wait())
            cause = await self._first_of(ray_gone) or EndCause.RAY_GONE
        starting.cancel()
        plugin.cancel()
        if cause is EndCause.RAY_GONE and self.ray is not None:
            self.journal.say(
                f"node {self.place.node}: Ray ended here by itself; its last words:\n{self.ray.tail(5)}"
            )
        await probing
        await self._end(cause)
        return 0

    async def _stay_linked(self) -> None:
        """Hear the head, over another link where one breaks while the job runs: the head's supervisor may
        have been killed, and another one be in its place. Returns when the head is gone.
        """
        while True:
            if self._head is not None:
                await self._head.listen(self._on_message)
            elif not self.reins.before:
                return
            if self._ends or not (self._serves or self.reins.before):
                return
            if self._head is not None:
                self.journal.note("the link to the head broke: joining again")
                self._head.close()
            try:
                self._head = await self._link(asyncio.get_running_loop().time() + REJOIN_SECONDS)
            except TimeoutError as error:
                self.journal.say(f"node {self.place.node}: {error}")
                return
            if self._serves:
                if self.windows is not None:
                    self.windows.gap()
                await self._tell(RayUp())
                self.tell_state(self._tell)

    async def _start(self, setup: asyncio.Task[None], deadline: float) -> None:
        await setup
        await self._wait_for_gcs(deadline)
        await self._begin_beside()
        await self.start_ray(deadline)
        await self._tell(RayUp())

    async def _begin_beside(self) -> None:
        """Everything that goes on beside Ray; the steps first, which may be going on."""
        await self.serve_steps(self._tell)
        if self.reins.before:  # from here on the driver may wait for this node's windows
            self._serves = True
            await self._tell(RayUp())
        await self.end_old_helpers()
        await self.files.start_sync()
        self.tell_state(self._tell)

        async def on_told(told: dict[str, Any]) -> None:
            if isinstance(told.get("news"), str):
                await self._tell(Recorded(told["news"]))

        self.start_recording(on_told)
        await self.start_distilling()

    async def _take_over(self) -> None:
        """Go on with the Ray of a supervisor that was killed."""
        await self.find_what_is_left()
        await self._begin_beside()

    def _on_message(self, message: Message) -> None:
        assert self._drain_ordered is not None
        if self.relay is not None and isinstance(message, STEP_KINDS):
            self.relay.hear(self.place.nodes[0], message)
        if isinstance(message, CaptureAsked):
            self._demands.append(asyncio.create_task(self.take_demand(message)))
        elif isinstance(message, Drain) and not self._drain_ordered.done():
            self._drain_ordered.set_result(message)
        elif isinstance(message, StopRay):
            self._may_stop.set()

    async def _first_of(self, work: asyncio.Task[Any]) -> EndCause | None:
        """None when `work` was done first; else what came: the head's order, a signal, the end of the
        head.
        """
        assert self.shutdown_requested is not None and self._drain_ordered is not None
        assert self._listening is not None
        ends: set[asyncio.Future[Any]] = {self._listening, self._drain_ordered, self.shutdown_requested}
        await asyncio.wait({*ends, work}, return_when=asyncio.FIRST_COMPLETED)
        if self._drain_ordered.done():
            return EndCause.ORDERED
        if self.shutdown_requested.done():
            return self.shutdown_requested.result()
        return None if work.done() else EndCause.HEAD_GONE

    async def _end(self, cause: EndCause) -> None:
        assert self._drain_ordered is not None
        self._ends = True
        self.reins.ends()
        await self._tell(Ending(str(cause)))
        seconds = float(self.settings.number("RLPROF_DRAIN_SECONDS"))
        if cause is EndCause.SIGNAL:  # the head gets it too, and finds out how much time there is
            await asyncio.wait({self._drain_ordered}, timeout=_HEAR_SECONDS)
            seconds = self.files.cancelled_budget_s()
        most_s = None
        if self._drain_ordered.done():
            order = self._drain_ordered.result()
            seconds, most_s = order.seconds, order.most_s
        self.journal.note(f"ending: {cause}")
        budget = Budget(seconds, most_s)
        await self.close_profilers(budget)
        await self._tell(ProfilersDone(self.journal.phases_s))
        if cause is EndCause.ORDERED:  # the others' windows must be closed too before any Ray goes
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._may_stop.wait(), budget.most("other_nodes"))
        await self._probe_clock("end")
        await self.files.finish(budget, self.stop_node)
        self.end_background()
        await self._tell(Drained(self.journal.phases_s))

    async def _probe_clock(self, moment: str) -> None:
        """How far this node's clock is from the head's, for the one timeline; a head that does not answer
        costs little.
        """
        place = self.place
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
            self.files.clock.append(found.to_dict(moment, place.nodes[0]))

    async def _wait_for_gcs(self, deadline: float) -> None:
        """Wait by connecting to the head's GCS; `ray start` itself gives up early and waits long."""
        place = self.place
        loop = asyncio.get_running_loop()
        with self.journal.phase("wait_for_head"):
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
