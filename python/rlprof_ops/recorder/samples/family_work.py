"""What a process and its children do, from /proc: processor time, bytes read and written."""

from __future__ import annotations

import os
import time

from rlprof_ops.host import processes
from rlprof_ops.runtime.on_demand.group_state import LOOK_S

WORKING_CORES, WORKING_MIB_S = 0.1, 1.0
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


class FamilyWork:
    """What a process and its children have done between two looks, which are at least LOOK_S apart. It has
    worked last at `worked_s` (monotonic), at the latest when it was looked at first.
    """

    def __init__(self) -> None:
        self.worker = ""  # the name by which the process tells its steps
        self.cores = self.mib_s = 0.0
        self.worked_s = time.monotonic()
        self._before: tuple[float, int, int] | None = None

    def look(self, pid: int) -> None:
        now = time.monotonic()
        if self._before is not None and now - self._before[0] < LOOK_S:
            return
        family = processes.with_descendants(pid)
        ticks, moved = sum(map(processes.cpu_ticks, family)), sum(map(processes.moved_bytes, family))
        if self._before is not None:  # a child that has ended takes its own away
            seconds = now - self._before[0]
            self.cores = max(0, ticks - self._before[1]) / _TICKS_PER_S / seconds
            self.mib_s = max(0, moved - self._before[2]) / (1 << 20) / seconds
            if self.cores >= WORKING_CORES or self.mib_s >= WORKING_MIB_S:
                self.worked_s = now
        self._before = now, ticks, moved
