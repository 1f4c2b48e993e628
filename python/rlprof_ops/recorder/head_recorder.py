"""The head's part: takes every node's news, says what stands out, and keeps the one summary of the job."""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from rlprof_ops.host.background import BackgroundWriter
from rlprof_ops.recorder.detect.finding import HANG, Finding
from rlprof_ops.recorder.detect.trigger import StepFact, Trigger
from rlprof_ops.recorder.job_view import JobView
from rlprof_ops.recorder.news import News
from rlprof_ops.request import ProfileRequest
from rlprof_ops.runtime.on_demand.watcher import STACKS, CaptureRequest

FOLDER = "recorder"
SUMMARY, FINDINGS = "summary.json", "findings.jsonl"
EVERY_S = 2.0
_LARGE = 1 << 18  # bytes of a summary that is written more rarely
_LARGE_EVERY_S = 5.0
_MOST_TOLD_BYTES = 4 << 20


class HeadRecorder:
    """`tell` takes what the supervisor has to do: `{"finding": …}`, `{"capture": …}`."""

    def __init__(
        self,
        run_dir: Path,
        job: str,
        nodes: Sequence[str],
        request: ProfileRequest,
        tell: Callable[[dict[str, Any]], None],
    ) -> None:
        waiting = [(number, spec) for number, spec in enumerate(request.captures, 1) if spec.waits]
        self._specs = [spec for _, spec in waiting]
        self._triggers = [Trigger(number, spec, spec.when) for number, spec in waiting if spec.when]
        hang_s = min((t.when.hang_s for t in self._triggers if t.when.hang_s), default=None)
        self.view = JobView(job, nodes, hang_s)
        self._run_dir, self._folder, self._tell = run_dir, run_dir / FOLDER, tell
        self._writer = BackgroundWriter()
        self._next = 0.0
        self._busy = False
        try:
            self._folder.mkdir(mode=0o750, exist_ok=True)
        except OSError as error:
            tell({"problem": f"{self._folder}: {error.strerror or error}"})
        self.view.remember(_told_before(self._folder / FINDINGS))

    def take(self, news: News) -> None:
        self._deal(self.view.take(news))
        while self.view.facts:
            self._on_step(self.view.facts.popleft())

    def look(self) -> None:
        """Once a second: the step clock, and the summary when its time has come."""
        self._deal(self.view.look(time.time_ns()))
        if time.monotonic() >= self._next and not self._busy:
            self.write()

    def write(self) -> None:
        """Put the summary where `rlprof top` reads it; never waits for the storage."""
        data = json.dumps(self.view.summary(), separators=(",", ":")).encode()
        self._next = time.monotonic() + (_LARGE_EVERY_S if len(data) > _LARGE else EVERY_S)
        self._busy = True
        self._writer.put(self._folder / SUMMARY, data, self._written)

    def _written(self, error: OSError | None) -> None:
        self._busy = False

    def close(self, seconds: float) -> None:
        self.write()
        self._writer.flush(seconds)

    def _deal(self, found: Sequence[Finding]) -> None:
        for finding in found:
            line = json.dumps(finding.to_dict()) + "\n"
            self._writer.append(self._folder / FINDINGS, line.encode())
            self._tell({"finding": finding.to_dict()})
            if finding.kind == HANG:
                identity = f"hang-step{finding.step}-{finding.t_ns // 1_000_000_000}"
                asked = CaptureRequest(identity, ("*",), None, STACKS, {}, 1, None)
                self._tell({"capture": asked.to_json()})
            for trigger, spec in zip(self._triggers, self._specs, strict=True):
                here = self.view.ranks_on(finding.node, spec) if finding.node else ()
                self._open(trigger.on_finding(finding, self.view.ranks(spec), self._used(trigger), here))

    def _on_step(self, fact: StepFact) -> None:
        for trigger, spec in zip(self._triggers, self._specs, strict=True):
            self._open(trigger.on_step(fact, self.view.ranks(spec), self._used(trigger)))

    def _open(self, asked: CaptureRequest | None) -> None:
        if asked is not None:
            self._tell({"capture": asked.to_json()})

    def _used(self, trigger: Trigger) -> int:
        """Bytes of the reports that have come home, where the trigger has a budget of them."""
        if not trigger.when.disk_bytes or not trigger.left:
            return 0
        return sum(
            os.stat(os.path.join(folder, name)).st_size
            for folder, _, names in os.walk(self._run_dir / "profiles")
            for name in names
        )


def _told_before(path: Path) -> list[Finding]:
    """The findings of a recorder that was killed."""
    found = []
    try:
        with open(path, "rb") as file:
            lines = file.read(_MOST_TOLD_BYTES).split(b"\n")
    except OSError:
        return []
    for line in lines:
        with contextlib.suppress(ValueError, TypeError, KeyError):
            row = json.loads(line)
            found.append(Finding(**{**row, "ranks": tuple(row["ranks"])}))
    return found
