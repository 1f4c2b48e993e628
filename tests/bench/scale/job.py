"""The processes of a simulated job: real supervisors and syncs of ours, each node in a PID namespace as on a
machine of its own, without Ray and without training.

    python -m tests.bench.scale.job HEAD|NODES JOB.json [FIRST LAST]

What is real: the supervisor's code from its start to its end, the control channel, the step clock, the
state, the sync process, the drain, harvest. What stands in: `ray start` and the check of its plugin
(python.sh), the training processes, whose files each node's supervisor writes here itself,
and the recorders but the head's: the others' news are made here.
"""

from __future__ import annotations

import asyncio
import ctypes
import gc
import gzip
import json
import os
import random
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from tests.bench.harness import PACKAGE
from tests.recorder.test_large_job import line

from rlprof_ops.backends import report_names
from rlprof_ops.job.folders import RunFolder
from rlprof_ops.job.supervisor_env import HeadAddress, supervisor_env
from rlprof_ops.recorder.__main__ import news_every_s
from rlprof_ops.request import Window
from rlprof_ops.runtime.process.event_log import EventLog, StepFile
from rlprof_ops.supervisor import job_end, node_task
from rlprof_ops.supervisor.control_channel import Message
from rlprof_ops.supervisor.job_end import NodeStop
from rlprof_ops.supervisor.node.node import Node
from rlprof_ops.supervisor.steps.step_relay import StepBegan, StepEnded, StepRelay

WORKER, RANKS = "policy_worker", 8
WINDOW = Window(3, 5)
TRAINING_PID = 1000
_CLONE_NEWNS, _CLONE_NEWPID, _MS_PRIVATE_EVERYWHERE = 0x00020000, 0x20000000, 0x44000


class Trainers:
    """What eight training processes of a node leave in its folder."""

    def __init__(self, node: str, index: int, folder: Path, report: bytes) -> None:
        self._node, self._folder, self._report = node, folder, report
        self._ranks = range(index * RANKS, (index + 1) * RANKS)
        self._events, self._steps = {}, {}
        for rank in self._ranks:
            stem = report_names.process_name(WORKER, rank, node, TRAINING_PID + rank)
            self._events[rank] = EventLog(folder / "events" / f"{stem}.jsonl")
            self._steps[rank] = StepFile(folder / "events" / f"{stem}.step")
            self._events[rank].write(
                "registered", worker=WORKER, rank=rank, world_size=None, pid=TRAINING_PID + rank, host=node,
                backends=["torch"],
            )  # fmt: skip
        self._logs = folder / "ray" / "session_2026-01-01_00-00-00_000000_1" / "logs"
        self._logs.mkdir(parents=True)

    def begin(self, step: int) -> None:
        for rank in self._ranks:
            self._steps[rank].store(step)
            with open(self._logs / f"worker-{rank}.out", "a") as log:
                log.write(f"step {step} of rank {rank}\n" * 4)
        if step == WINDOW.start:
            for rank in self._ranks:
                self._events[rank].write("opened", **self._of_window(), report=self._name(rank))

    def end(self, step: int) -> None:
        if step != WINDOW.stop - 1:
            return
        for rank in self._ranks:
            path = report_names.report_folder("torch", WORKER, rank) / self._name(rank)
            final = self._folder / path
            final.parent.mkdir(parents=True, exist_ok=True)
            part = self._folder / "tmp" / final.name
            part.write_bytes(self._report)
            part.rename(final)
            self._events[rank].write("closed", **self._of_window(), path=str(path))

    def exit(self, step: int) -> None:
        for rank in self._ranks:
            self._events[rank].write("ended", last_step=step, step_times_ns={})

    def _name(self, rank: int) -> str:
        return report_names.report_name(
            WORKER, rank, WINDOW, None, self._node, TRAINING_PID + rank, ".pt.trace.json.gz"
        )

    @staticmethod
    def _of_window() -> dict[str, Any]:
        return {"backend": "torch", "steps": [WINDOW.start, WINDOW.stop], "phase": None}


class SimulatedNode(Node):
    """A node that stands in for training, and notes the clock's times."""

    job: dict[str, Any]
    trainers: Trainers | None = None
    _last = 0

    def __init__(self, *of: Any, **named: Any) -> None:
        super().__init__(*of, **named)
        self.told_ns: dict[str, list[int]] = {}

    async def serve_steps(self, tell: Any, others: Any = None) -> None:
        async def timed(message: Message) -> None:
            began = time.monotonic_ns()
            await tell(message)
            self.told_ns.setdefault(type(message).__name__, []).append(time.monotonic_ns() - began)

        await super().serve_steps(timed, others)
        if self.relay is not None:
            self.watch(self.relay)

    def watch(self, relay: StepRelay) -> None:
        """Write this node's training files at its steps, and how late each step came."""
        place = self.place
        self._late_ns: dict[int, int] = {}
        self.trainers = Trainers(
            place.node, place.index, place.folder.path, Path(self.job["report"]).read_bytes()
        )
        apply = relay.apply

        async def applied(message: Message) -> None:
            await apply(message)
            assert self.trainers is not None
            if isinstance(message, StepBegan):
                self._late_ns[message.step] = time.time_ns() - message.t_ns
                self._last = message.step
                self.trainers.begin(message.step)
            elif isinstance(message, StepEnded):
                self.trainers.end(message.step)

        relay.apply = applied  # type: ignore[method-assign]

    def leave(self) -> None:
        if self.trainers is not None:
            self.trainers.exit(self._last)
            path = Path(self.job["base"], "late", f"{self.place.node}.json")
            path.write_text(json.dumps(self._late_ns))

    def start_recording(self, on_recorded: Callable[[dict[str, Any]], Awaitable[None]]) -> None:
        """The news of a node's recorder as they go over the wire, as often as the recorder sends them."""
        if self.place.is_head:
            super().start_recording(on_recorded)
            return

        async def tell() -> None:
            every_s, rng = news_every_s(len(self.place.nodes)), random.Random(self.place.node)
            await asyncio.sleep(rng.uniform(0, every_s))
            while True:
                await on_recorded({"news": line(self.place.index, self._last, rng)})
                await asyncio.sleep(every_s)

        self.spawn(tell())


class SimulatedStop(NodeStop):
    """Training ends with the job."""

    async def close_profilers(self, budget: Any) -> None:
        if isinstance(self.node, SimulatedNode):
            self.node.leave()
        await super().close_profilers(budget)


async def drain_job(head: Any, *rest: Any) -> float | None:
    """The real one; then the times of the control channel are written down."""
    kill_at = await REAL_DRAIN(head, *rest)
    base = head.node.job["base"]
    Path(base, "told.json").write_text(json.dumps(head.node.told_ns))
    Path(base, "drained").touch()
    return kill_at


REAL_DRAIN = job_end._drain_job


def environment(job: dict[str, Any], node: str) -> dict[str, str]:
    """A supervisor's variables, as ray.sub would set them on that node."""
    run = RunFolder(Path(job["run"]))
    head = HeadAddress("127.0.0.1", job["gcs_port"], job["control_port"])
    env = {name: value for name, value in os.environ.items() if not name.startswith(("SLURM", "RLPROF"))}
    env |= supervisor_env(job["name"], run, node, job["nodes"], head)
    env |= job["knobs"]
    root = Path(job["base"], "nodes", node)
    root.mkdir(parents=True, exist_ok=True)
    env |= {
        "SLURM_NODEID": str(job["nodes"].index(node)),
        "RLPROF_NODE_ROOT": str(root),
        "RLPROF_BEGAN": str(job["began"]),
        "PYTHONPATH": str(PACKAGE),
        "SCALE_PYTHON": sys.executable,
    }
    return env


def be(job: dict[str, Any], node: str) -> None:
    """This process is the task of `node` until the job's end."""
    os.environ.clear()
    os.environ.update(environment(job, node))
    sys.executable = str(Path(__file__).with_name("python.sh"))
    SimulatedNode.job = job
    node_task.Node, job_end.NodeStop = SimulatedNode, SimulatedStop  # type: ignore[misc]
    job_end._drain_job = drain_job
    os._exit(node_task.main())


def alone() -> None:
    """A process tree of its own from the next fork on, as on a machine of its own."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(_CLONE_NEWNS | _CLONE_NEWPID):
        raise OSError(ctypes.get_errno(), "unshare: the simulation needs root")
    libc.mount(b"none", b"/", None, _MS_PRIVATE_EVERYWHERE, None)


def own_proc() -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mount(b"proc", b"/proc", b"proc", 0, None):
        raise OSError(ctypes.get_errno(), "mount /proc")


def many(job: dict[str, Any], first: int, last: int) -> None:
    """Fork the supervisors of nodes `first` to `last`: modules are loaded once."""
    gc.collect()
    gc.freeze()
    children = []
    for node in job["nodes"][first:last]:
        child = os.fork()
        if not child:
            log = os.open(Path(job["base"], "output", f"{node}.log"), os.O_WRONLY | os.O_CREAT, 0o644)
            os.dup2(log, 1)
            os.dup2(log, 2)
            alone()
            inner = os.fork()
            if inner:
                os.waitpid(inner, 0)
                os._exit(0)
            own_proc()
            be(job, node)
        children.append(child)
    Path(job["base"], "forked").touch()
    for child in children:
        os.waitpid(child, 0)


def report_of(kib: int) -> bytes:
    """A torch trace of about `kib` KiB compressed."""
    event = {
        "ph": "X",
        "name": "train",
        "ts": 1,
        "dur": 2,
        "pid": 1,
        "tid": 1,
        "args": {"x": os.urandom(kib << 9).hex()},
    }
    return gzip.compress(json.dumps({"traceEvents": [event]}).encode(), 1)


def main() -> None:
    what, path, *between = sys.argv[1:]
    job = json.loads(Path(path).read_text())
    if what == "HEAD":
        alone()
        inner = os.fork()
        if inner:
            sys.exit(os.waitstatus_to_exitcode(os.waitpid(inner, 0)[1]))
        own_proc()
        be(job, job["nodes"][0])
    many(job, *map(int, between))


if __name__ == "__main__":
    main()
