"""Looks at each report: whole, empty, truncated? What was found is kept, so that a second harvest does not
look again.
"""

from __future__ import annotations

import io
import json
import math
import os
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from rlprof_ops import backends
from rlprof_ops.backends.nsight import nsys_cli
from rlprof_ops.collect.drain.nsys_contents import Contents, ExportFailed, NotLookedInto, look
from rlprof_ops.collect.harvest.inventory import FoundReport
from rlprof_ops.collect.harvest.manifest import Report
from rlprof_ops.collect.sync.copy_bytes import digest_of
from rlprof_ops.host import foreign
from rlprof_ops.host.contained_dir import ContainedDir
from rlprof_ops.host.foreign import reason_of

_FILE = ".harvest/checks.jsonl"


@dataclass(frozen=True, slots=True)
class ReportCheck:
    """What one look found; `looked_inside` when an export was read, not only the file's frame."""

    state: str
    reason: str = ""
    warning: str = ""
    sha256: str | None = None
    looked_inside: bool = False
    kernels: int | None = None
    pids: tuple[int, ...] = ()
    steps: tuple[int, ...] = ()
    started_ns: int | None = None


class Checker:
    """Checks reports below a run folder; verdicts are cached by path, size and time in `.harvest/`.

    After `hash_until` (monotonic) no digest is made any more, and such a verdict is not kept.
    """

    def __init__(self, run: ContainedDir, *, hash_until: float = math.inf) -> None:
        self._run, self._hash_until = run, hash_until
        self._has_nsys = nsys_cli.find() is not None
        self._known: dict[str, tuple[int, int, ReportCheck]] = {}
        self._load()
        try:
            self._stream: io.FileIO | None = io.FileIO(run.open_write(_FILE, os.O_CREAT | os.O_APPEND), "ab")
        except OSError:
            self._stream = (
                None  # a run folder that cannot be written: harvest will say so when it writes the manifest
            )

    def close(self) -> None:
        if self._stream is not None:
            self._stream.close()

    def check(self, found: FoundReport) -> ReportCheck:
        """The verdict on one report by its frame, or what an earlier look found; never raises for a bad
        file.
        """
        report = found.report
        known = self._known.pop(report.path, None)  # each report is checked once
        if known is not None and known[:2] == (report.size_bytes, report.mtime_ns):
            return known[2]
        try:
            verdict = self._check(found)
        except OSError as error:  # of this moment, so that it is not kept
            return ReportCheck("truncated", f"cannot be read: {reason_of(error)}")
        if time.monotonic() < self._hash_until:
            self._remember(report, verdict)
        return verdict

    def can_look(self, report: Report, verdict: ReportCheck) -> bool:
        """Whether nsys can say more of a report than its frame did."""
        is_whole = verdict.state == "ok" and not verdict.looked_inside
        is_nsys = report.backend == "nsight" and report.path.endswith(nsys_cli.SUFFIX)
        return is_whole and is_nsys and self._has_nsys

    def look(self, report: Report, verdict: ReportCheck, timeout_s: float) -> tuple[ReportCheck, str]:
        """The verdict by what is inside, which an nsys export shows (it takes a second or more); where none
        could be made here, the one by its frame, and why. That is not kept.
        """
        try:
            contents = look(Path(self._run.root) / report.path, timeout_s=timeout_s)
            verdict = _judge(contents, verdict.sha256)
        except NotLookedInto as error:
            return verdict, str(error)
        except ExportFailed as error:
            reason = f"nsys cannot read it: {error}"
            verdict = replace(verdict, state="truncated", reason=reason, looked_inside=True)
        self._remember(report, verdict)
        return verdict, ""

    def _check(self, found: FoundReport) -> ReportCheck:
        """Raises OSError."""
        report = found.report
        if found.expected_bytes is not None and found.expected_bytes != report.size_bytes:
            return ReportCheck(
                "truncated", f"it has {report.size_bytes} bytes, its node sent {found.expected_bytes}"
            )
        digest = report.sha256
        if digest is None and time.monotonic() < self._hash_until:
            digest = self._digest(report.path)
        if report.backend is None:
            return ReportCheck("ok", warning="its kind is unknown: not checked", sha256=digest)
        # The frame check takes a path; what O_NOFOLLOW opened just now was a regular file below the run
        # folder.
        try:
            check = backends.get(report.backend).check(Path(self._run.root) / report.path)
        except Exception as error:  # one bad file is that file's fault alone
            if isinstance(error, OSError) and error.errno:
                raise
            reason = reason_of(error) or type(error).__name__
            return ReportCheck("truncated", f"cannot be checked: {reason}", sha256=digest)
        if check.state != "ok":
            return ReportCheck(check.state, check.reason, sha256=digest)
        return ReportCheck("ok", sha256=digest)

    def _digest(self, path: str) -> str:
        fd = self._run.open_read(path)
        try:
            return digest_of(fd).sha256
        finally:
            os.close(fd)

    def _load(self) -> None:
        try:
            raw = self._run.read(_FILE)
        except OSError:
            return
        for line in raw.split(b"\n"):
            try:
                path, size, mtime, verdict = foreign.parse(line)
                self._known[path] = (size, mtime, foreign.typed(verdict, ReportCheck))
            except (ValueError, TypeError, KeyError):
                continue

    def _remember(self, report: Report, verdict: ReportCheck) -> None:
        if self._stream is not None:
            row = [report.path, report.size_bytes, report.mtime_ns, asdict(verdict)]
            try:
                self._stream.write((json.dumps(row) + "\n").encode())
            except OSError:
                self._stream = None


def _judge(contents: Contents, digest: str | None) -> ReportCheck:
    state, reason, warning = "ok", "", ""
    if contents.events == 0:
        state, reason = "empty", "nothing was recorded in it: no range, no kernel, no call"
    elif contents.gpus and contents.kernels == 0:
        # nsys-ai #160: nsys may end with 0 and a report without a kernel table. A worker without GPU work
        # looks the same.
        warning = "no CUDA kernel in it although the node has a GPU"
    return ReportCheck(
        state,
        reason,
        warning,
        digest,
        True,
        contents.kernels,
        tuple(sorted(contents.pids)),
        tuple(sorted(contents.steps)),
        contents.started_ns,
    )
