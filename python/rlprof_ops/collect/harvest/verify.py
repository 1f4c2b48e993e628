"""Looks at each report: whole, empty, truncated? What was found is kept, so that a second harvest does not
look again.
"""

from __future__ import annotations

import io
import json
import os
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from rlprof_ops import backends
from rlprof_ops.backends.nsight import nsys_cli
from rlprof_ops.collect.drain.nsys_contents import Contents, ExportFailed, look
from rlprof_ops.collect.harvest.inventory import FoundReport
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

    Content checks (an nsys export takes a second or more) stop when `budget_left()` is no longer positive.
    """

    def __init__(self, run: ContainedDir, *, budget_left: Callable[[], float], inside: bool = True) -> None:
        self._run, self._budget_left = run, budget_left
        self._inside = inside and nsys_cli.find() is not None
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
        """The verdict on one report; never raises for a bad file."""
        report = found.report
        known = self._known.pop(report.path, None)  # each report is checked once
        if known is not None and known[:2] == (report.size_bytes, report.mtime_ns):
            verdict = known[2]
            if verdict.looked_inside or not self._can_look(found):
                return verdict
        verdict = self._check(found)
        self._remember(report.path, report.size_bytes, report.mtime_ns, verdict)
        return verdict

    def _can_look(self, found: FoundReport) -> bool:
        return (
            self._inside
            and found.report.backend == "nsight"
            and found.report.path.endswith(nsys_cli.SUFFIX)
            and self._budget_left() > 0
        )

    def _check(self, found: FoundReport) -> ReportCheck:
        report = found.report
        if found.expected_bytes is not None and found.expected_bytes != report.size_bytes:
            return ReportCheck(
                "truncated", f"it has {report.size_bytes} bytes, its node sent {found.expected_bytes}"
            )
        try:
            digest = report.sha256 or self._digest(report.path)
        except OSError as error:
            return ReportCheck("truncated", f"cannot be read: {reason_of(error)}")
        if report.backend is None:
            return ReportCheck("ok", warning="its kind is unknown: not checked", sha256=digest)
        # The frame check takes a path; what O_NOFOLLOW opened just now was a regular file below the run
        # folder.
        try:
            check = backends.get(report.backend).check(Path(self._run.root) / report.path)
        except Exception as error:  # one bad file is that file's fault alone
            reason = reason_of(error) or type(error).__name__
            return ReportCheck("truncated", f"cannot be checked: {reason}", sha256=digest)
        if check.state != "ok":
            return ReportCheck(check.state, check.reason, sha256=digest)
        if not self._can_look(found):
            return ReportCheck("ok", sha256=digest)
        try:
            contents = look(Path(self._run.root) / report.path, timeout_s=max(10.0, self._budget_left()))
        except ExportFailed as error:
            return ReportCheck(
                "truncated", f"nsys cannot read it: {error}", sha256=digest, looked_inside=True
            )
        return _judge(contents, digest)

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

    def _remember(self, path: str, size: int, mtime: int, verdict: ReportCheck) -> None:
        if self._stream is not None:
            try:
                self._stream.write((json.dumps([path, size, mtime, asdict(verdict)]) + "\n").encode())
            except OSError:
                self._stream = None


def _judge(contents: Contents, digest: str) -> ReportCheck:
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
