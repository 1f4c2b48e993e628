"""The one error of all readers: it names the file, what is wrong with it and what to do."""

from __future__ import annotations

from pathlib import Path

from rlprof_ops.errors import RlprofError


class UnreadableReport(RlprofError):
    """Nothing of a report can be used. `reason` is one line, without the file's name."""

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(f"cannot read {path}: {reason}")
        self.path = path
        self.reason = reason

    def __reduce__(self) -> tuple[type[UnreadableReport], tuple[Path, str]]:
        return UnreadableReport, (self.path, self.reason)
