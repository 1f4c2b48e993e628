"""What the events of a session tell of the windows that a killed supervisor had begun."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from rlprof_ops.backends import report_names
from rlprof_ops.backends.window_support import TRAINER
from rlprof_ops.host import foreign
from rlprof_ops.runtime.process.session_file import Session


@dataclass(frozen=True)
class LeftOpen:
    """A window that was open: its steps, the name its report has in `tmp`, who asked for it."""

    start: int
    stop: int | None
    report: str
    asked_by: str | None


@dataclass(frozen=True)
class Left:
    """`begun`: the steps of the windows of the request that were opened, or could not be. `asked`: how many
    the trainer has opened itself.
    """

    begun: frozenset[tuple[int, int | None]] = frozenset()
    window: LeftOpen | None = None
    asked: int = 0


def events_path(node_dir: Path, session: Session) -> Path:
    """The events of a session. Its process may have a file of its own, for captures that it takes itself."""
    stem = report_names.process_name(session.worker, session.rank, session.host, session.pid)
    return node_dir / "events" / f"{stem}.session.jsonl"


def has_events(node_dir: Path, session: Session) -> bool:
    """Whether a supervisor has watched the session."""
    return events_path(node_dir, session).exists()


def read(events: Path) -> Left:
    """What stands in one session's event file."""
    begun: set[tuple[int, int | None]] = set()
    window: LeftOpen | None = None
    asked = 0
    for row in foreign.read_rows(events):
        steps, what = row.get("steps"), row.get("event")
        if what not in ("opened", "closed", "failed") or not isinstance(steps, list) or len(steps) != 2:
            continue
        start, stop, asked_by = int(steps[0]), steps[1], row.get("asked_by")
        if asked_by is None:
            begun.add((start, stop))
        if what == "opened":
            asked += asked_by == TRAINER
            window = LeftOpen(start, stop, Path(str(row.get("report"))).name, asked_by)
        elif window is not None and (window.start, window.asked_by) == (start, asked_by):
            window = None
    return Left(frozenset(begun), window, asked)
