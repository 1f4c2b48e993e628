"""Whose a report is that has no name of ours: worker, rank and step as trainers and profilers write them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import PurePath

_SUFFIX = re.compile(r"(\.pt\.trace)?\.(json|json\.gz|nsys-rep|sqlite|pickle|proto|pftrace)$")
_RANK = re.compile(r"(?:^|[^A-Za-z])ranks?[-_.]?(\d+)(?=$|[^0-9A-Za-z])", re.IGNORECASE)
_STEP = re.compile(
    r"(?:^|[^A-Za-z])(?:global[-_])?(?:step|iter|iteration)s?[-_.]?(\d+)(?:-(\d+))?(?=$|[^0-9A-Za-z])",
    re.IGNORECASE,
)
_NUMBERS = re.compile(r"(?:^|[-_.])(?:pid[-_]?)?\d+(?=$|[-_.])")
# Words that say what a file is and not whose
_GENERIC = frozenset({
    "trace", "traces", "prof", "profile", "profiles", "profiler", "profiling", "torch", "pytorch", "pt",
    "kineto", "nsys", "nsight", "report", "reports", "output", "outputs", "out", "log", "logs", "tb",
    "tensorboard", "plugins", "worker", "process", "data", "tmp", "json", "sqlite",
})  # fmt: skip
NAMELESS = "worker"


@dataclass(frozen=True)
class Told:
    """What a foreign file name tells; None where it does not."""

    worker: str
    rank: int | None
    start: int | None
    stop: int | None  # half-open


def told_by(path: PurePath) -> Told:
    """What the name of a report tells, and its folders where the name is a generic one.

    path: relative to the folder that the reports were looked for in

    All ranks of one worker must come out with one name: rank, step, pid and time are no part of it.
    """
    stem = _SUFFIX.sub("", path.name)
    rank, step = _RANK.search(stem), _STEP.search(stem)
    worker = _plain(stem)
    for folder in [] if worker else reversed(path.parts[:-1]):
        rank = rank or _RANK.search(folder)
        worker = worker or _plain(folder)
    start = int(step[1]) if step else None
    stop = (int(step[2]) if step[2] else int(step[1])) + 1 if step else None
    return Told(worker or NAMELESS, int(rank[1]) if rank else None, start, stop)


def _plain(text: str) -> str:
    """A name without rank, step and numbers; "" where nothing but generic words is left."""
    left = _NUMBERS.sub("", _STEP.sub("", _RANK.sub("", text))).strip("-_. ")
    words = [word for word in re.split(r"[-_. ]+", left.lower()) if word]
    return "" if all(word in _GENERIC for word in words) else left
