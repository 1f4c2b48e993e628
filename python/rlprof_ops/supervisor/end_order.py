"""The order to end the job, as the supervisor of a node gets it: a signal, or what stands in the node's
state.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Awaitable
from typing import NoReturn, TypeVar

from rlprof_ops.errors import RlprofError
from rlprof_ops.job.end_cause import ORDER_EXIT, EndCause
from rlprof_ops.supervisor.node.node_state import NodeState

_Result = TypeVar("_Result")
# SIGTERM: the job ends now. SIGUSR2: its time runs out. The first one decides the cause.
CAUSES = {
    signal.SIGTERM: EndCause.SIGNAL,
    signal.SIGINT: EndCause.SIGNAL,
    signal.SIGUSR2: EndCause.TIME_LIMIT,
}


class ToldToEnd(RlprofError):
    """An order to end came before the cluster was up."""

    def __init__(self, cause: EndCause, before: str) -> None:
        super().__init__(f"told to end ({cause}) before {before}")
        self.cause = cause
        self.exit_code = ORDER_EXIT[cause]


class EndOrder:
    """Listens from the moment it is made, in the loop that runs: signals are blocked until then."""

    def __init__(self, state: NodeState) -> None:
        loop = asyncio.get_running_loop()
        self.given: asyncio.Future[EndCause] = loop.create_future()
        self._state = state
        for number in CAUSES:
            loop.add_signal_handler(number, self.give, CAUSES[number])
        signal.pthread_sigmask(signal.SIG_UNBLOCK, CAUSES)
        if (before := state.end_order()) is not None:
            self.give(before)

    @property
    def cause(self) -> EndCause | None:
        return self.given.result() if self.given.done() else None

    async def told(self, before: str) -> NoReturn:
        """Raise ToldToEnd once the order is given; `before`: what it came before."""
        raise ToldToEnd(await asyncio.shield(self.given), before)

    def give(self, cause: EndCause) -> None:
        """Order the end; the first order decides the cause."""
        if not self.given.done():
            self._state.order_end(cause)
            self.given.set_result(cause)


async def first_of(work: Awaitable[_Result], *ends: Awaitable[_Result]) -> _Result:
    """What `work` gives, or the end that comes before it gives or raises; the others are cancelled."""
    tasks = [asyncio.ensure_future(each) for each in (work, *ends)]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        return next(task for task in tasks if task in done).result()
    finally:
        for task in tasks:
            task.cancel()
