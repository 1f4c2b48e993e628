"""The part of a profiler that tells its steps: it writes them down, marks where it is, and, where it leads
the job's steps, tells them to the node's supervisor."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass

from rlprof_ops.runtime import step_clock
from rlprof_ops.runtime.marks import NowFile
from rlprof_ops.runtime.process.event_log import EventLog, log_once
from rlprof_ops.runtime.ranges import trackers

# A step with more phases than this is written down with its first ones; a phase in an inner loop is a
# mistake.
_MOST_PHASES = 1000
_BY_THE_PROGRAM = "no trainer recognised; prof.step of the program"


@dataclass
class PhaseSpan:
    """One phase of a step, in Unix nanoseconds; `depth` 0: in no other phase."""

    name: str
    begin_ns: int
    depth: int
    end_ns: int = 0


class Leader:
    """Steps and phases of one process. One event line a step: its times and its phases, in Unix
    nanoseconds. `leads`: they are the job's."""

    def __init__(
        self,
        events: EventLog,
        link: step_clock.Lead | None,
        now: NowFile | None = None,
        *,
        leads: bool = True,
    ) -> None:
        self._events = events
        self._link = link
        self._now = now
        self.leads = leads
        self.by = _BY_THE_PROGRAM  # whose steps these are
        self.by_log = False  # its output tells them
        self._told_whose = not leads
        self._tracked = leads and trackers.asked()
        self._pid = os.getpid()
        self.step: int | None = None  # that runs
        self._begin_ns = 0
        self._phases: list[PhaseSpan] = []
        self._dropped = 0
        self._open: dict[int, PhaseSpan] = {}  # by their identity: coroutines end theirs in any order

    def begin(self, step: int) -> bool:
        """Step `step` begins; whether windows of the job change with it, which `opened` waits for."""
        if os.getpid() != self._pid:
            return False
        if self.step == step:
            return False
        if self.step is not None:  # its end was never told
            self.end(self.step)
        if not self._told_whose:
            self._told_whose = True
            self._events.write("leads", by=self.by, log=self.by_log)
        waits = self._link.begin(step) if self._link is not None else False
        self.step, self._begin_ns = step, time.time_ns()
        self._phases, self._dropped = [], 0  # what ended between two steps is none of either
        if self._now is not None:
            self._now.step(step, self._begin_ns)
        return waits

    def opened(self, step: int, waits: bool) -> None:
        """This process's windows are open: wait for those of all nodes where `waits`. The step's time begins
        here."""
        if self._link is not None and waits:
            self._link.opened(step)
        if self.step == step:
            self._begin_ns = time.time_ns()
            if self._now is not None:
                self._now.step(step, self._begin_ns)

    def end(self, step: int, *, cut: bool = False) -> None:
        """Step `step` ended: write it down, and tell it. `cut`: by an error or with the process, before its
        work was done."""
        if self.step != step or os.getpid() != self._pid:
            return
        end_ns, begin_ns, dropped = time.time_ns(), self._begin_ns, self._dropped
        rows = [
            (phase.name, max(phase.begin_ns, begin_ns), phase.end_ns, phase.depth)
            for phase in self._phases
            if phase.end_ns >= begin_ns
        ]
        self.step, self._phases, self._dropped = None, [], 0
        if self._link is not None:
            self._link.end(step)
        if self._now is not None:
            self._now.step(-step, end_ns)
        if dropped:
            log_once(
                f"step {step} had {len(rows) + dropped} phases: its first {_MOST_PHASES} are written down."
                " A phase belongs around a part of the step, not in an inner loop",
                key="too many phases",
            )
        self._events.write(
            "step",
            step=step,
            begin_ns=begin_ns,
            end_ns=end_ns,
            phases=rows,
            **({"dropped_phases": dropped} if dropped else {}),
            **({"cut": True} if cut else {}),
        )
        if self._tracked and not cut:
            trackers.tell(step, begin_ns, end_ns, rows)

    def close(self) -> None:
        """Write down a step that was never ended."""
        if self.step is not None:
            self.end(self.step, cut=True)

    def phase_begins(self, name: str) -> PhaseSpan:
        """The record of a phase, which `phase_ends` completes."""
        phase = PhaseSpan(name, time.time_ns(), len(self._open))
        self._open[id(phase)] = phase
        if self._link is not None and self.step is not None:
            self._link.phase(self.step, name)
        if self._now is not None:
            self._now.phase(name, phase.begin_ns)
        return phase

    def phase_ends(self, phase: PhaseSpan) -> None:
        phase.end_ns = time.time_ns()
        self._open.pop(id(phase), None)
        if self._now is not None:
            innermost = next(reversed(self._open.values()), None)
            self._now.phase(innermost.name if innermost else "", phase.end_ns)
        if len(self._phases) < _MOST_PHASES:
            self._phases.append(phase)
        else:
            self._dropped += 1
