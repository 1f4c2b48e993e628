"""The head's part: takes every node's news, says what stands out, and keeps the one summary of the job."""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from rlprof_ops import env_names
from rlprof_ops.host import foreign
from rlprof_ops.host.background import BackgroundWriter, in_time
from rlprof_ops.host.contained_dir import PinnedDir
from rlprof_ops.recorder.detect.anomaly import HANG, Anomaly
from rlprof_ops.recorder.detect.trigger import StepFact, Trigger
from rlprof_ops.recorder.job_view import JobView
from rlprof_ops.recorder.news import News
from rlprof_ops.request import ProfileRequest
from rlprof_ops.runtime.on_demand.watcher import DUMPS, STACKS, CaptureRequest

FOLDER = "recorder"
SUMMARY, FINDINGS, CAPTURES = "summary.json", "findings.jsonl", "captures.jsonl"
EVERY_S = 2.0
_LARGE = 1 << 18  # bytes of a summary that is written more rarely
_LARGE_EVERY_S = 5.0
_MOST_TOLD_BYTES = 4 << 20
_OLD_NS = 10_000_000_000
_STORAGE_S = 2.0  # for a look at the reports
END_AFTER_S = 60.0  # a hang's stacks and dumps are home by then


class HeadRecorder:
    """`tell` takes what the supervisor has to do: `{"finding": …}`, `{"capture": …}`, `{"end": …}`."""

    def __init__(
        self,
        run: PinnedDir,
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
        self._run_dir, self._folder, self._tell = run.path, run.path / FOLDER, tell
        self._writer = BackgroundWriter(run)
        self._next = 0.0
        self._busy = False
        self._used_bytes = 0
        self._on_hang = os.environ.get(env_names.ON_HANG) or "dump"
        self._hangs: dict[str, float] = {}  # key -> since when (monotonic)
        try:
            with run.open() as folder, folder.folder((FOLDER,), create=True):
                pass
        except OSError as error:
            tell({"problem": f"{self._folder}: {error.strerror or error}"})
        # What ended before a recorder that was killed was started again: that one has judged it.
        again = (self._folder / SUMMARY).exists()
        self._judged_ns = time.time_ns() - _OLD_NS if again else 0
        self.view.remember(_findings_before(self._folder / FINDINGS))
        taken = [
            (str(row["id"]), int(row["step"])) for row in read_rows(self._folder / CAPTURES, ("id", "step"))
        ]
        for trigger in self._triggers:
            trigger.resume(taken)

    def take(self, news: News) -> None:
        self._deal(self.view.take(news))
        while self.view.facts:
            self._on_step(self.view.facts.popleft())

    def look(self) -> None:
        """Once a second: the step clock, and the summary when its time has come."""
        self._deal(self.view.look(time.time_ns()))
        if self._on_hang == "end":
            self._end_of_hang(time.monotonic())
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

    def _deal(self, found: Sequence[Anomaly]) -> None:
        for finding in found:
            line = json.dumps(finding.to_dict()) + "\n"
            self._writer.append(self._folder / FINDINGS, line.encode())
            self._tell({"finding": finding.to_dict()})
            if finding.kind == HANG and self._on_hang != "say":
                identity = f"hang-step{finding.step}-{finding.t_ns // 1_000_000_000}"
                for name, what in ((f"{identity}-dumps", DUMPS), (identity, STACKS)):  # stacks take longer
                    asked = CaptureRequest(name, ("*",), None, what, {}, 1, None)
                    self._tell({"capture": asked.to_json()})
            for trigger, spec in zip(self._triggers, self._specs, strict=True):
                here = self.view.ranks_on(finding.node, spec) if finding.node else ()
                step = finding.step or self.view.step
                at = replace(finding, step=step)
                self._open(trigger.on_finding(at, self.view.ranks(spec), self._used, here), step)

    def _end_of_hang(self, now_s: float) -> None:
        """Have the job end once a hang has stood for END_AFTER_S since it was found."""
        hangs = [each for each in self.view.findings if each.kind == HANG and self.view.stands(each)]
        self._hangs = {each.key: self._hangs.get(each.key, now_s) for each in hangs}
        for hang in hangs:
            if now_s - self._hangs[hang.key] >= END_AFTER_S:
                self._on_hang = "dump"  # said once
                self._tell({"end": hang.text})

    def _on_step(self, fact: StepFact) -> None:
        if fact.end_ns < self._judged_ns:
            return
        for trigger, spec in zip(self._triggers, self._specs, strict=True):
            self._open(trigger.on_step(fact, self.view.ranks(spec), self._used), fact.step)

    def _open(self, asked: CaptureRequest | None, step: int) -> None:
        if asked is not None:
            row = {"id": asked.id, "step": step, "t_ns": time.time_ns(), "ranks": asked.ranks}
            self._writer.append(self._folder / CAPTURES, json.dumps(row).encode() + b"\n")
            self._tell({"capture": asked.to_json()})

    def _used(self) -> int:
        """Bytes of the reports that have come home; what was seen last where the storage does not answer."""
        with contextlib.suppress(TimeoutError):
            self._used_bytes = in_time(_bytes_below, self._run_dir / "profiles", seconds=_STORAGE_S)
        return self._used_bytes


def _bytes_below(folder: Path) -> int:
    """Of all files; those that a sync renames meanwhile may be left out."""
    total = 0
    for path, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(OSError):
                total += os.stat(os.path.join(path, name)).st_size
    return total


def _findings_before(path: Path) -> list[Anomaly]:
    """The findings of a recorder that was killed."""
    found = []
    for row in read_rows(path, ("ranks",)):
        with contextlib.suppress(TypeError):
            found.append(Anomaly(**{**row, "ranks": tuple(row["ranks"])}))
    return found


def read_rows(path: Path, keys: Sequence[str]) -> list[dict[str, Any]]:
    """The lines that have these keys; those that are none of ours are left out."""
    found = foreign.read_rows(path, _MOST_TOLD_BYTES)
    return [row for row in found if all(key in row for key in keys)]
