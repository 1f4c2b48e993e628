"""A node's supervisor on the sandbox, apart from the task that keeps it."""

from __future__ import annotations

import re
from pathlib import Path

from tests.sandbox import Sandbox
from tests.sandbox.box import Process
from tests.waits import wait_until

COMMAND = re.compile(r"-m rlprof_ops\.supervisor( |$)")


def supervisor_of(sandbox: Sandbox, node: str, seconds: float = 60) -> Process:
    """The one that runs now, or comes within `seconds`."""
    found: list[Process] = []

    def there() -> bool:
        both = {each.host_pid: each for each in sandbox.processes(node) if COMMAND.search(each.cmdline)}
        found[:] = [each for each in both.values() if _parent(each.host_pid) in both]
        return bool(found)

    wait_until(there, seconds, lambda: str(sandbox.processes(node)), pause_s=0.1)
    return found[0]


def _parent(pid: int) -> int:
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return 0
    found = re.search(r"^PPid:\s+(\d+)$", status, re.M)
    return int(found.group(1)) if found else 0
