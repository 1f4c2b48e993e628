"""A real out-of-memory kill: the kernel's own, in a memory control group that holds one process."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from tests.sandbox.box import Living, start_time
from tests.waits import wait_until

_V1, _V2 = Path("/sys/fs/cgroup/memory"), Path("/sys/fs/cgroup")


def out_of_memory(pid: int) -> None:
    """Put one process where there is no memory left, and wait until the kernel has killed it. Needs
    need("memory_cgroup").
    """
    root, limit = (_V1, "memory.limit_in_bytes") if (_V1 / "cgroup.procs").exists() else (_V2, "memory.max")
    process = Living(pid, start_time(pid) or 0)
    group = root / f"rlprof-test-{pid}"
    group.mkdir()
    try:
        (group / limit).write_text("4096")
        (group / "cgroup.procs").write_text(str(pid))
        wait_until(lambda: not process.alive(), 60, "the kernel did not kill it")
        events = group / ("memory.oom_control" if root == _V1 else "memory.events")
        counts = dict(line.split() for line in events.read_text().splitlines())
        assert int(counts["oom_kill"]) == 1, counts
    finally:
        process.kill()
        with contextlib.suppress(OSError):
            wait_until(lambda: not (group / "cgroup.procs").read_text(), 60)
            group.rmdir()


@contextlib.contextmanager
def limited(size_bytes: int) -> Iterator[Path]:
    """A control group for what is put into its `cgroup.procs` and has ended by the end of the block. Needs
    need("memory_cgroup").
    """
    root, limit = (_V1, "memory.limit_in_bytes") if (_V1 / "cgroup.procs").exists() else (_V2, "memory.max")
    group = root / f"rlprof-test-limit-{os.getpid()}"
    group.mkdir()
    try:
        (group / limit).write_text(str(size_bytes))
        yield group
    finally:
        with contextlib.suppress(OSError):
            wait_until(lambda: not (group / "cgroup.procs").read_text(), 60)
            group.rmdir()


def lacking() -> str:
    """Why there can be no memory control group here; empty when there can."""
    if (_V1 / "memory.limit_in_bytes").exists() or (_V1 / "cgroup.procs").exists():
        return ""
    try:
        on = "memory" in (_V2 / "cgroup.subtree_control").read_text().split()
    except OSError:
        on = False
    return "" if on else "no memory control group below /sys/fs/cgroup"
