"""Tasks of the job's step that ended before their node joined: a container that does not start is told by
srun alone, whose words the batch script leaves in the run folder (scripts/lib/job.sh, job::_listen_to_srun).
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from pathlib import Path

from rlprof_ops.host.background import in_background
from rlprof_ops.host.contained_dir import ContainedDir

_PREFIX = "ended_"
_POLL_SECONDS = 0.5
_STORAGE_SECONDS = 600.0  # a thread that hangs is left behind then
_JOINING_SECONDS = 2.0  # for a message of the node's own, which says more
_MOST_BYTES = 1 << 16


async def watch(control: Path, tell: Callable[[str, str], None]) -> None:
    """Until cancelled: tell each node whose task has ended, and how."""
    known: set[str] = set()
    while True:
        await asyncio.sleep(_POLL_SECONDS)
        with contextlib.suppress(OSError, TimeoutError):
            new = await in_background(_read_new, control, frozenset(known), seconds=_STORAGE_SECONDS)
            if new:
                await asyncio.sleep(_JOINING_SECONDS)
            for node, how in new.items():
                known.add(node)
                tell(node, how)


def _read_new(control: Path, known: frozenset[str]) -> dict[str, str]:
    """Node -> what srun said of its task, and the last words before it."""
    found = {}
    for path in sorted(control.glob(f"{_PREFIX}*")):
        node = path.name.removeprefix(_PREFIX)
        if node in known or path.suffix == ".tmp":
            continue
        with ContainedDir(control) as folder:
            lines = folder.read(path.name, _MOST_BYTES).decode(errors="replace").splitlines()
        found[node] = "\n  ".join(line for line in lines if line.strip())
    return found
