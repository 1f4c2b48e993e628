"""Tells the job's steps from what the driver prints, by the request's `steps_from`.

A process of its own beside the supervisor, since an expression of a user's can take for ever on a line: such
a line is left out after `_MATCH_S`. It leads as a process of the trainer does, but the driver waits for
nothing. What it has to say to a person are JSON lines on its standard output.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from rlprof_ops import env_names
from rlprof_ops.request.steps_from import StepsFrom, group_of, parse_rule
from rlprof_ops.runtime import marks, step_clock
from rlprof_ops.runtime.leader import Leader
from rlprof_ops.runtime.process.event_log import EventLog
from rlprof_ops.runtime.process.worker_identity import DRIVER, WorkerIdentity
from rlprof_ops.words import duration

_LOOK_S = 0.02
_MATCH_S = 0.05  # for one line
_MOST_SLOW = 100  # lines that take longer; then the rule is given up
_MOST_LINE = 4096  # bytes of a line that are looked at
_MOST_READ = 1 << 20
_MOST_BEHIND = 64 << 20  # of what was printed before we began
_MOST_STEP = 1 << 31
_LINE_ENDS = re.compile(rb"[\r\n]")  # a progress bar returns the carriage
_COLOURS = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")


def words_of(rule: StepsFrom, log: Path, driver: int) -> list[str]:
    """The words after the module's name. `driver`: the pid whose steps these are."""
    return [json.dumps(rule.to_dict()), str(log), str(driver)]


class TooSlow(Exception):
    """The expression has had its time for this line."""


class LogLines:
    """The lines of a file that grows, each as soon as something of it is there."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0
        self._rest = b""
        with contextlib.suppress(OSError):
            self._offset = max(0, os.stat(path).st_size - _MOST_BEHIND)

    def new(self) -> Iterator[tuple[bytes, bool]]:
        """What was printed since the last look: lines, and whether more of a line may come."""
        while data := self._read():
            *ended, rest = _LINE_ENDS.split(self._rest + data)
            self._rest = rest[:_MOST_LINE]
            yield from ((line[:_MOST_LINE], False) for line in ended)
            if self._rest:
                yield self._rest, True

    def _read(self) -> bytes:
        try:
            with open(self._path, "rb", buffering=0) as file:
                if os.fstat(file.fileno()).st_size < self._offset:
                    self._offset, self._rest = 0, b""
                data = os.pread(file.fileno(), _MOST_READ, self._offset)
        except OSError:
            return b""
        self._offset += len(data)
        return data


class LineRule:
    """Finds a step's number in a line, in bounded time; in the main thread alone. Raises re.error."""

    def __init__(self, rule: StepsFrom, say: Callable[[str], None]) -> None:
        self._rule, self._say = rule, say
        self._pattern = re.compile(rule.log)
        self._group = group_of(self._pattern)
        self._slow = 0
        self._matching = False
        signal.signal(signal.SIGALRM, self._on_alarm)

    def number(self, line: bytes, more: bool) -> int | None:
        """None for none. With `more` to come, a number at the end of what is there is not yet known."""
        if self._slow > _MOST_SLOW:
            return None
        text = _COLOURS.sub("", line.decode("utf-8", "replace"))
        try:
            found = self._search(text)
        except TooSlow:
            self._was_slow(len(text))
            return None
        if found is None or found[self._group] is None or (more and found.end(self._group) == len(text)):
            return None
        with contextlib.suppress(ValueError):
            number = int(found[self._group])
            return number if number < _MOST_STEP else None
        return None

    def _search(self, text: str) -> re.Match[str] | None:
        try:
            self._matching = True
            signal.setitimer(signal.ITIMER_REAL, _MATCH_S)
            return self._pattern.search(text)
        finally:
            self._matching = False
            signal.setitimer(signal.ITIMER_REAL, 0)

    def _on_alarm(self, *_: object) -> None:
        if self._matching:
            raise TooSlow

    def _was_slow(self, length: int) -> None:
        self._slow += 1
        if self._slow == 1:
            self._say(
                f"steps_from: '{self._rule.log}' takes more than {duration(_MATCH_S * 1e9)} on a line of"
                f" {length} characters: such lines are left out"
            )
        elif self._slow > _MOST_SLOW:
            self._say(f"steps_from: '{self._rule.log}' is too slow: no more steps are taken from the output")


class LogLead(step_clock.Lead):
    """Tells steps to the supervisor as those of the driver's output, for which nobody waits."""

    skips = False  # whether steps before the one that begins were not told

    def begin(self, step: int) -> bool:
        self._link.send({"begin": step, "t_ns": time.time_ns(), "log": True, "skips": self.skips})
        return False

    def end(self, step: int) -> None:
        self._link.send({"end": step, "t_ns": time.time_ns(), "log": True})


class LogSteps:
    """Steps by the numbers that lines say, in the order in which they come. `lead` is asked for who tells
    them once there is a step.
    """

    def __init__(
        self, lead: Callable[[], tuple[Leader, LogLead | None]], ends: bool, say: Callable[[str], None]
    ) -> None:
        self._make_lead, self._say = lead, say
        self._ends = ends
        self._leader: Leader | None = None
        self._lead: LogLead | None = None
        self._exact = False
        self._said: set[str] = set()
        self.current = 0

    @property
    def last(self) -> int:
        """The number that was said last."""
        return max(0, self.current - self._ends)

    def behind(self, number: int) -> None:
        """A number that was printed before anybody looked: which step runs, not since when."""
        self.current = max(self.current, number + self._ends)

    def resume(self) -> None:
        """Go on with the step that runs."""
        if self.current > 0:
            self._begin(self.current, exact=False)

    def number(self, number: int) -> None:
        """A line with `number`."""
        begins, current = number + self._ends, self.current
        if begins < 1 or begins == current:
            return
        if begins < current:
            if begins < current - 1:  # other ranks may be one step behind
                text = f"the output goes back from {self.last} to {number}: smaller numbers are left out, so"
                self._say_once("back", f"{text} steps have to be counted through the whole run")
            return
        jumps = bool(current) and begins > current + 1
        if jumps:
            text = f"the output goes from {self.last} to {number}: steps between have no times of their own,"
            self._say_once("jumps", f"{text} and windows open and close at the lines that there are")
        if self._leader is not None:
            self._leader.end(current, cut=jumps or not self._exact)
        self._begin(begins, exact=True, skips=jumps)

    def _begin(self, step: int, exact: bool, skips: bool = False) -> None:
        self.current, self._exact = step, exact
        if self._leader is None:
            self._leader, self._lead = self._make_lead()
        if self._lead is not None:
            self._lead.skips = skips
        self._leader.begin(step)
        self._leader.opened(step, False)

    def close(self) -> None:
        """Write down the step that was never ended."""
        if self._leader is not None:
            self._leader.close()

    def _say_once(self, key: str, text: str) -> None:
        if key not in self._said:
            self._said.add(key)
            self._say(f"steps_from: {text}")


class LogReader:
    """Looks at the driver's output until it is told to end."""

    def __init__(self, rule: StepsFrom, log: Path, driver: int, say: Callable[[str], None]) -> None:
        node_dir = Path(os.environ[env_names.NODE_DIR])
        self._who = WorkerIdentity(
            *(DRIVER, 0, 1, os.environ.get(env_names.NODE, ""), driver),
            *(node_dir, node_dir / "tmp", node_dir / "events"),
        )
        self._events = EventLog(self._who.events / f"{self._who.stem}.jsonl")
        self._now_path = node_dir / marks.FOLDER / (self._who.stem + marks.SUFFIX)
        self._steps = LogSteps(self._lead, rule.when == "ends", say)
        self._rule, self._finds, self._lines = rule, LineRule(rule, say), LogLines(log)
        self._late_s = 0.0
        self.ended = False

    def _lead(self) -> tuple[Leader, LogLead | None]:
        who, now, lead = self._who, None, None
        self._events.registered(who, (), on_demand=False)
        if marks.asked():
            now = marks.NowFile(self._now_path, who.worker, 0, 1, True, who.pid)
        with contextlib.suppress(OSError):  # else the job has no step clock
            lead = LogLead(str(who.root), None)
        leader = Leader(self._events, lead, now)
        leader.by, leader.by_log = f"no trainer recognised; {self._rule}", True
        return leader, lead

    def run(self) -> None:
        """Until `ended`."""
        for number in self._numbers():
            self._steps.behind(number)
        self._steps.resume()
        looked = time.monotonic()
        while not self.ended:
            time.sleep(_LOOK_S)
            began, before = time.monotonic(), self._steps.current
            self._look()
            if before and self._steps.current != before:
                self._late_s = max(self._late_s, time.monotonic() - looked)
            looked = began
        self._look()

    def _look(self) -> None:
        """Of several numbers that came at once the last one counts: nothing tells when the others did."""
        if found := list(self._numbers()):
            self._steps.number(max(found))

    def _numbers(self) -> Iterator[int]:
        for line, more in self._lines.new():
            number = self._finds.number(line, more)
            if number is not None:
                yield number

    def close(self) -> None:
        """Write down the step that was never ended, and how late a step was told at most."""
        if self._steps.current:
            self._steps.close()
            self._events.write("ended", last_step=self._steps.last, late_s=round(self._late_s, 4))
        with contextlib.suppress(OSError):
            self._now_path.unlink()


def main() -> int:
    """Follow until SIGTERM."""
    text, log, driver = sys.argv[1:]

    def say(text: str) -> None:
        print(json.dumps({"say": text}), flush=True)

    rule = parse_rule(json.loads(text), lambda key, wrong: say(f"steps_from: {wrong}"))
    if rule is None:  # of a request that another Python has checked
        signal.pause()
        return 0
    follower = LogReader(rule, Path(log), int(driver), say)

    def end(*_: object) -> None:
        follower.ended = True

    signal.signal(signal.SIGTERM, end)
    try:
        follower.run()
    finally:
        follower.close()
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
