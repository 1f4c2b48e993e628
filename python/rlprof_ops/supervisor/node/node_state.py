"""What a supervisor needs to know of its node, in files of the node folder: each supervisor starts from them,
so that none is missed. The order to end the job is among them, whether it comes as a signal or stood there.

The node's own disk holds them: no start and no order to end waits for shared storage. The keeper makes the
folder for the first supervisor, empty, and removes it when the last one has ended. What has become of the
driver stands in memory (`driver_status`).
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import signal
from collections.abc import Awaitable
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from rlprof_ops.errors import RlprofError
from rlprof_ops.host import atomic, foreign
from rlprof_ops.job.end_cause import ORDER_EXIT, EndCause
from rlprof_ops.supervisor.node.driver_status import DriverStatus

FOLDER = "state"
_NODE, _ORDER, _DRIVER_REQUEST, _RUN, _TOKEN = (
    "node.json",
    "end_order",
    "driver_request.json",
    "run.json",
    "ray_token",
)
_Result = TypeVar("_Result")
_LATE_S = 1.0
# SIGTERM: the job ends now. SIGUSR2: its time runs out. The first one decides the cause.
CAUSES = {
    signal.SIGTERM: EndCause.SIGNAL,
    signal.SIGINT: EndCause.SIGNAL,
    signal.SIGUSR2: EndCause.TIME_LIMIT,
}


@dataclass(frozen=True)
class RayState:
    """Ray on this node: pid and start time (clock ticks since boot) of `ray start`, where its output begins
    in its log, and whether it came up.
    """

    pid: int
    started: int
    log_offset: int = 0
    up: bool = False


@dataclass(frozen=True)
class End:
    """Why this node's part of the job ends, with which exit code, and since when (seconds of the epoch)."""

    cause: EndCause
    code: int
    began: float


@dataclass
class NodeState:
    """One node's state; `save` after each change.

    `keeper`: its pid. `request`: the job's, as JSON; `notes`: on it; `whole_request`: the same before what
    earlier attempts brought home, "" without those. `serving`: the cluster is up, on the head; elsewhere Ray
    is. `nodes`: the other nodes that serve. `nodes_up`: what Ray has counted. `drained`: only harvest and
    report are left. `driver`: the keeper's word on it, in no file.
    """

    folder: Path
    keeper: int = 0
    token: str = ""
    request: str = ""
    notes: tuple[str, ...] = ()
    whole_request: str = ""
    setup_done: bool = False
    ray: RayState | None = None
    serving: bool = False
    nodes: tuple[str, ...] = ()
    nodes_up: int | None = None
    started_ns: int = 0
    phases_s: dict[str, float] = field(default_factory=dict)
    end: End | None = None
    drained: bool = False
    driver: DriverStatus = field(default_factory=DriverStatus)

    @classmethod
    def make(cls, node_dir: Path) -> NodeState:
        """The state of a node where nothing has begun, with the caller as its keeper. Raises OSError."""
        folder = node_dir / FOLDER
        shutil.rmtree(folder, ignore_errors=True)  # of another job of this number
        folder.mkdir(mode=0o700)
        made = cls(folder, os.getpid())
        made.save()
        return made

    @classmethod
    def load(cls, node_dir: Path, driver: DriverStatus | None = None) -> NodeState:
        """What the supervisor before has saved; that of a start where there was none. `driver`: as the
        keeper has it, for a supervisor.
        """
        folder = node_dir / FOLDER
        driver = driver or DriverStatus()
        try:
            values: dict[str, Any] = foreign.read(folder / _NODE)
            ray, end = values.pop("ray"), values.pop("end")
            values["nodes"], values["notes"] = tuple(values["nodes"]), tuple(values["notes"])
            return cls(
                folder,
                ray=RayState(**ray) if ray else None,
                end=End(EndCause(end["cause"]), end["code"], end["began"]) if end else None,
                driver=driver,
                **values,
            )
        except (OSError, ValueError, TypeError, LookupError):
            return cls(folder, driver=driver)

    def save(self) -> None:
        """A disk that takes nothing costs the next supervisor what is new, and this one nothing."""
        names = (each.name for each in fields(self) if each.name not in ("folder", "driver"))
        text = json.dumps({name: getattr(self, name) for name in names}, default=asdict)
        with contextlib.suppress(OSError):
            atomic.write(self.folder / _NODE, text, mode=0o600)

    def token_file(self, shared: Path) -> Path:
        """This node's copy of the job's token: every process of Ray reads it as it begins, where shared
        storage that fails would end the training. `shared` where a full disk takes none.
        """
        path = self.folder / _TOKEN
        with contextlib.suppress(OSError):
            if not path.exists():
                atomic.write(path, self.token, mode=0o600)
            return path
        return shared

    def remove(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)

    # ---- the order to end

    def order_end(self, cause: EndCause) -> None:
        """Keep the first order for the supervisors to come."""
        path = self.folder / _ORDER
        with contextlib.suppress(OSError):
            if not path.exists():
                atomic.write(path, str(cause))

    def end_order(self) -> EndCause | None:
        try:
            return EndCause((self.folder / _ORDER).read_text())
        except (OSError, ValueError):
            return None

    # ---- the driver, which the keeper starts

    def request_driver(self, values: dict[str, Any]) -> None:
        """What the keeper is to start, once. Raises OSError."""
        if not self.driver.read():
            atomic.write(self.folder / _DRIVER_REQUEST, json.dumps(values), mode=0o600)

    def take_driver_request(self) -> dict[str, Any]:
        """What is to be started. It is gone then: its environment may hold secrets."""
        path = self.folder / _DRIVER_REQUEST
        asked = foreign.read_object(path)
        with contextlib.suppress(OSError):
            path.unlink()
        return asked

    # ---- run.json, on the head

    @property
    def run_json(self) -> Path:
        return self.folder / _RUN


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

    async def come_late(self) -> None:
        """Wait a moment for the order: Slurm signals every process of a step at once, and what runs here can
        be faster to end than we are to hear of it.
        """
        await asyncio.wait({self.given}, timeout=_LATE_S)

    async def raise_when_given(self, before: str) -> NoReturn:
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
