"""A node's supervisor on the sandbox, apart from the task that keeps it."""

from __future__ import annotations

import re

from rlprof_ops.supervisor import keeper
from tests.sandbox import Sandbox
from tests.sandbox.box import Process
from tests.waits import wait_until

KEEPER = keeper.NAME.decode()
_COMMAND = re.compile(r"-m rlprof_ops\.supervisor( |$)")


def supervisor_of(sandbox: Sandbox, node: str, seconds: float = 60) -> Process:
    """The one that runs now, or comes within `seconds`."""
    found: list[Process] = []

    def there() -> bool:
        ours = [each for each in sandbox.processes(node) if _COMMAND.search(each.cmdline)]
        found[:] = [each for each in ours if each.name != KEEPER]
        return bool(found)

    wait_until(there, seconds, lambda: str(sandbox.processes(node)), pause_s=0.1)
    return found[0]
