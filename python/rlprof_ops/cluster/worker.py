"""The supervisor of a node that is not the head: join, keep Ray up, end when told or when the head is gone."""

from __future__ import annotations

import asyncio
import contextlib
import os
from typing import Any

from rlprof_ops.cluster.control import Node
from rlprof_ops.cluster.supervisor import Supervisor
from rlprof_ops.errors import RlprofError


class Worker(Supervisor):
    """One node beside the head."""

    async def run(self) -> int:
        """0 when the node served until the job's end; raises RlprofError when it never got up."""
        self.listen_to_signals()
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self.settings.number("RLPROF_READY_SECONDS")
        place = self.place
        setup = asyncio.create_task(self.run_setup())
        hello = {"node": place.node, "ip": place.ip, "pid": os.getpid()}
        try:
            head = await Node.join(place.head_ip, place.control_port, place.token, hello, deadline)
        except TimeoutError as error:
            raise RlprofError(f"node {place.node}: {error}") from error
        try:
            return await self._serve(head, setup, deadline)
        except RlprofError as error:
            await head.tell({"state": "failed", "reason": str(error)})
            raise
        finally:
            head.close()

    async def _serve(self, head: Node, setup: asyncio.Task[None], deadline: float) -> int:
        await setup
        await self._wait_for_gcs(deadline)
        await self.start_sync()
        await self.start_ray(deadline)
        await head.tell({"state": "ray_up"})
        plugin = asyncio.create_task(self.watch_plugin())
        cause, seconds = await self._until_the_end(head)
        plugin.cancel()
        await head.tell({"state": "ending", "cause": cause})
        self.journal.note(f"ending: {cause}")
        await self.close_profilers(seconds / 2)
        await head.tell({"state": "profilers_done", "phases_s": self.journal.phases_s})
        if cause == "told":  # the others' windows must be closed too before any Ray goes
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._may_stop.wait(), seconds / 2)
        await self.finish(seconds / 2)
        await head.tell({"state": "drained", "phases_s": self.journal.phases_s})
        return 0

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

    async def _until_the_end(self, head: Node) -> tuple[str, float]:
        """What ended the node's service, and the seconds it has for the drain."""
        assert self.told_to_end is not None
        assert self.ray is not None
        self._may_stop = asyncio.Event()
        told: asyncio.Future[float] = asyncio.get_running_loop().create_future()

        def on_message(message: dict[str, Any]) -> None:
            if message.get("do") == "drain" and not told.done():
                told.set_result(float(message.get("seconds", 60)))
            elif message.get("do") == "stop_ray":
                self._may_stop.set()

        listening = asyncio.create_task(head.listen(on_message))
        self._listening = listening
        ray_gone = asyncio.create_task(self.ray.gone.wait())
        await asyncio.wait(
            {listening, ray_gone, told, asyncio.shield(self.told_to_end)}, return_when=asyncio.FIRST_COMPLETED
        )
        ray_gone.cancel()
        full = float(self.settings.number("RLPROF_DRAIN_SECONDS"))
        if told.done():
            return "told", told.result()
        if self.told_to_end.done():
            return self.told_to_end.result(), full
        if self.ray.gone.is_set():
            self.journal.say(
                f"node {self.place.node}: Ray ended here by itself; its last words:\n{self.ray.tail(5)}"
            )
            return "ray_gone", full
        return "head_gone", full
