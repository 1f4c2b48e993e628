"""A node's part in captures on demand: hands requests from the run folder to the node's workers, and takes
their stacks.

`rlprof capture` and `rlprof stacks` reach only shared storage. One process a node reads it, once a second, so
that the number of workers does not matter to the file system.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from rlprof_ops.collect.event_logs import ProcessLog, read_node
from rlprof_ops.host import atomic
from rlprof_ops.host.background import in_background
from rlprof_ops.request import CaptureSpec
from rlprof_ops.runtime.on_demand import watcher

_PY_SPY_SECONDS = 20.0
_STORAGE_SECONDS = 600.0  # a thread that hangs is left behind then


async def serve(
    run_dir: Path,
    node_dir: Path,
    node: str,
    say: Callable[[str], None],
    on_demand: Callable[[watcher.CaptureRequest], None] | None = None,
) -> None:
    """Until cancelled: forward each new request, answer those for stacks, and hand all others to `on_demand`
    too, which opens windows of sessions from outside.
    """
    source, target = run_dir / watcher.FOLDER, node_dir / watcher.FOLDER
    known = await in_background(_names, source, seconds=_STORAGE_SECONDS)
    while True:
        with contextlib.suppress(OSError, TimeoutError):
            before = set(known)
            await in_background(watcher.forward, source, target, known, seconds=_STORAGE_SECONDS)
            for name in sorted(known - before):
                demand = await in_background(
                    _answer_stacks, source, source / name, node_dir, node, say, seconds=_STORAGE_SECONDS
                )
                if demand is not None and on_demand is not None:
                    on_demand(demand)
        await asyncio.sleep(watcher.POLL_S)


def _names(source: Path) -> set[str]:
    return {entry.name for entry in source.glob("*.json")} if source.is_dir() else set()


def _answer_stacks(
    run_control: Path, path: Path, node_dir: Path, node: str, say: Callable[[str], None]
) -> watcher.CaptureRequest | None:
    """Take stacks where these are asked for; else what was asked for."""
    try:
        demand = watcher.CaptureRequest.from_json(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    say(f"on demand {demand.id}: {demand.backend} of {', '.join(demand.workers)}")
    if demand.backend != watcher.STACKS:
        return demand
    for log in living(read_node(node_dir / "events", node)):
        if CaptureSpec(workers=demand.workers, ranks=demand.ranks).matches(log.worker, log.rank):
            answer = {
                "worker": log.worker,
                "rank": log.rank,
                "node": node,
                "pid": log.pid,
                "text": stacks_of(log.pid),
            }
            write_answer(run_control / f"{demand.id}.{watcher.STACKS}", answer)
    return None


def write_answer(folder: Path, answer: dict[str, object]) -> None:
    """One process's stacks, whole or not at all, where the waiting command looks."""
    folder.mkdir(mode=0o700, exist_ok=True)
    atomic.write(folder / f"{answer['node']}_{answer['pid']}.json", json.dumps(answer))


def living(logs: list[ProcessLog]) -> list[ProcessLog]:
    """Those of this machine's processes that have neither ended nor died."""
    return [log for log in logs if not log.ended and log.pid > 1 and os.path.isdir(f"/proc/{log.pid}")]


def stacks_of(pid: int) -> str:
    """The Python stacks of a process of this machine, by py-spy from outside: it need not answer. Else why
    there are none.
    """
    tool = _py_spy()
    if tool is None:
        return "no py-spy on this node: pip install py-spy there (or in the container)"
    try:
        done = subprocess.run(
            [tool, "dump", "--pid", str(pid)],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_PY_SPY_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"py-spy: {error}"
    if done.returncode:
        reason = (done.stderr or done.stdout).strip()
        hint = (
            "; reading another process needs CAP_SYS_PTRACE (or kernel.yama.ptrace_scope=0)"
            if "ermission" in reason
            else ""
        )
        return f"py-spy: {reason}{hint}"
    return done.stdout


def _py_spy() -> str | None:
    beside = Path(sys.executable).with_name("py-spy")
    return str(beside) if beside.is_file() else shutil.which("py-spy")
