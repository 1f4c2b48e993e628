"""A node's part in captures on demand: hands requests from the run folder to the node's workers, and takes
their stacks.

`rlprof capture` and `rlprof stacks` ask the head over the control channel, and the head tells the other
nodes, so that no worker and no node looks at the file system for it. Where the head cannot be reached from a
login node they leave a file in the run folder, for which the head alone looks now and then.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import sys
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

from rlprof_ops.collect.event_logs import ProcessLog, read_node
from rlprof_ops.host import command
from rlprof_ops.host.background import in_background
from rlprof_ops.job.folders import pinned_run
from rlprof_ops.redact import redact_text
from rlprof_ops.request import CaptureSpec
from rlprof_ops.runtime.on_demand import watcher
from rlprof_ops.supervisor import control_channel
from rlprof_ops.supervisor.control_channel import Message

LOOK_S = 30.0  # at the run folder, for requests that could not be sent
_PY_SPY_SECONDS = 20.0
_SEND_SECONDS = 10.0
_STORAGE_SECONDS = 600.0  # a thread that hangs is left behind then


@dataclass(frozen=True)
class CaptureAsked(Message):
    """`rlprof capture` or `rlprof stacks` has asked for something; `request` is a CaptureRequest in JSON."""

    request: str


def send(control: str, token: str, request: watcher.CaptureRequest) -> bool:
    """For a command: hand a request to the head at `control`, `address:port`. Gives whether it was taken."""
    host, _, port = control.rpartition(":")
    if not host or not port.isdigit():
        return False
    asked = CaptureAsked(request.to_json())
    return asyncio.run(control_channel.visit(host, int(port), token, asked, _SEND_SECONDS))


async def watch(run_dir: Path, tell: Callable[[CaptureAsked], Awaitable[None]]) -> None:
    """On the head alone, until cancelled: tell all nodes what is asked in the run folder."""
    source = run_dir / watcher.FOLDER
    known = await in_background(_names, source, seconds=_STORAGE_SECONDS)
    while True:
        with contextlib.suppress(OSError, TimeoutError):
            for request in await in_background(watcher.new_requests, source, known, seconds=_STORAGE_SECONDS):
                await tell(CaptureAsked(request.to_json()))
        await asyncio.sleep(LOOK_S)


async def take(
    asked: CaptureAsked, run_dir: Path, node_dir: Path, node: str, say: Callable[[str], None]
) -> watcher.CaptureRequest | None:
    """A node's part: hand the request to its workers, or take their stacks; None for those, for dumps, and
    for what is no request.
    """
    try:
        request = watcher.CaptureRequest.from_json(asked.request)
    except ValueError as error:
        say(f"on demand: {error}")
        return None
    say(f"on demand {request.id}: {request.backend} of {', '.join(request.workers)}")
    if request.backend != watcher.STACKS:
        watcher.leave(node_dir / watcher.FOLDER, request)
        return None if request.backend == watcher.DUMPS else request
    with contextlib.suppress(TimeoutError):
        await in_background(_answer_stacks, request, run_dir, node_dir, node, seconds=_STORAGE_SECONDS)
    return None


def _names(source: Path) -> set[str]:
    return {entry.name for entry in source.glob("*.json")} if source.is_dir() else set()


def _answer_stacks(request: watcher.CaptureRequest, run_dir: Path, node_dir: Path, node: str) -> None:
    for log in living(read_node(node_dir / "events", node)):
        if CaptureSpec(workers=request.workers, ranks=request.ranks).matches(log.worker, log.rank):
            answer = {
                "worker": log.worker,
                "rank": log.rank,
                "node": node,
                "pid": log.pid,
                "text": stacks_of(log.pid),
            }
            place = f"{watcher.FOLDER}/{request.id}.{watcher.STACKS}/{node}_{log.pid}.json"
            with pinned_run(run_dir, node_dir).open() as run:  # where the waiting command looks
                run.write_atomic(place, json.dumps(answer).encode())


def living(logs: list[ProcessLog]) -> list[ProcessLog]:
    """Those of this machine's processes that have neither ended nor died."""
    return [log for log in logs if not log.ended and log.pid > 1 and os.path.isdir(f"/proc/{log.pid}")]


def stacks_of(pid: int) -> str:
    """The Python stacks of a process of this machine, by py-spy from outside: it need not answer. Else why
    there are none. Above the stacks py-spy writes the whole command line, so secrets in it are masked.
    """
    tool = _py_spy()
    if tool is None:
        return "no py-spy on this node: pip install py-spy there (or in the container)"
    done = command.run([tool, "dump", "--pid", str(pid)], _PY_SPY_SECONDS)
    if done.returncode:
        reason = (done.stderr or done.stdout).strip()
        hint = (
            "; reading another process needs CAP_SYS_PTRACE (or kernel.yama.ptrace_scope=0)"
            if "ermission" in reason
            else ""
        )
        return redact_text(f"py-spy: {reason}{hint}")
    return redact_text(done.stdout)


def _py_spy() -> str | None:
    beside = Path(sys.executable).with_name("py-spy")
    return str(beside) if beside.is_file() else shutil.which("py-spy")
