"""Whether an answer is still that of its run folder: by what run.json and manifest.json said then and now, or
by which reports there were where no job says anything.
"""

from __future__ import annotations

import contextlib
import hashlib
from pathlib import Path

from rlprof_ops.analyze.report_model import Answer
from rlprof_ops.analyze.run.identity import find_reports
from rlprof_ops.errors import UsageError
from rlprof_ops.host import foreign
from rlprof_ops.job.end_cause import EndCause


def made_of(root: Path) -> str:
    """SHA-256 of a run's run.json and manifest.json, where there is neither of the list of its reports; empty
    where there is none either.

    By content: a harvest again may change nothing, and a node's clock is not the storage's.
    """
    said = _records(root) or _listing(root)
    return hashlib.sha256(said).hexdigest() if said else ""


def _records(root: Path) -> bytes:
    folder, said = root if root.is_dir() else root.parent, b""
    for name in ("run.json", "manifest.json"):
        with contextlib.suppress(OSError, ValueError):
            said += foreign.read_bytes(folder / name)
    return said


def _listing(root: Path) -> bytes:
    with contextlib.suppress(UsageError, OSError):
        return repr([(each.path, each.size_bytes, each.modified_ns) for each in find_reports(root)]).encode()
    return b""


def goes_on(folder: Path) -> bool:
    """Whether the end of a job is neither recorded by itself nor found out by a harvest."""
    end = foreign.read_object(folder / "run.json").get("end")
    is_running = isinstance(end, dict) and end.get("cause") == EndCause.RUNNING
    return is_running and not (folder / "manifest.json").exists()


def why_outdated(answer: Answer, root: Path) -> str:
    """Why an answer may no longer be that of `root`, in words; empty where it is, or no record tells."""
    if goes_on(root):
        return "no end of the job is recorded yet"
    if made_of(root) not in ("", answer.made_of):
        of = "run.json and manifest.json" if _records(root) else "reports"
        return f"it was not made of the {of} that are here"
    return ""
