"""Connections of a process on which nothing moves: bytes that nobody takes."""

from __future__ import annotations

import math
import time

from rlprof_ops.host import ports
from rlprof_ops.host.ports import Connection
from rlprof_ops.runtime.on_demand.group_state import LOOK_S

_MOST = 2


class Links:
    """Of one process, by looks that are at least LOOK_S apart. `stuck`: connections with as many bytes unsent
    and unread as in the look before, those with most first. `here`: this machine's address on one of them.
    """

    def __init__(self) -> None:
        self.stuck: tuple[Connection, ...] = ()
        self.here = ""
        self._then = -math.inf
        self._before: frozenset[Connection] = frozenset()

    def look(self, pid: int) -> None:
        if time.monotonic() - self._then < LOOK_S:
            return
        self._then = time.monotonic()
        now = frozenset(ports.connections(pid).values())
        outer = sorted(each.here for each in now if not each.here.startswith(("127.", "[::1]")))
        self.here = outer[0].rpartition(":")[0] if outer else ""
        still = [each for each in now & self._before if each.unsent or each.unread]
        self.stuck = tuple(sorted(still, key=lambda each: (-each.unsent, -each.unread, each.peer))[:_MOST])
        self._before = now
