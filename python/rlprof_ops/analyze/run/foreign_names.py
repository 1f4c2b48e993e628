"""Whose a report is that has no name of ours: worker, rank and step as trainers and profilers write them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import PurePath

_SUFFIX = re.compile(r"(\.pt\.trace|\.trace)?\.(json|json\.gz|nsys-rep|sqlite|pickle|proto|pftrace)$")
_RANK = re.compile(
    r"(?:^|[^A-Za-z])ranks?[-_.]?(\d+)(?:-of-\d+)?(?=$|[^0-9A-Za-z])",  # verl: rank1-of-8
    re.IGNORECASE,
)
_STEP = re.compile(
    r"(?:^|[^A-Za-z])(?:global[-_])?(?:step|iter|iteration)s?[-_.]?(\d+)(?:-(\d+))?(?=$|[^0-9A-Za-z])",
    re.IGNORECASE,
)
# The place of a rank among tensor, pipeline, data, context and expert parallel ones: two or more in a row, as
# vLLM (dp0_pp0_tp1_dcp0_ep1) and verl (tp1-pp0-dp0) write them, and SGLang's -TP-1-DP-0-PP-0-EP-1-DECODE.
_PLACE = re.compile(r"(?<![A-Za-z0-9])(?:(?:[tpd]p|d?cp|pcp|ep)\d+[-_]?){2,}(?![A-Za-z0-9])")
_SGLANG = re.compile(
    r"-TP-(\d+)(?:-DP-(\d+))?(?:-PP-(\d+))?(?:-EP-\d+)?(?:-(?:EXTEND|DECODE|memory))?(?=$|\.)"
)
_STAGE = re.compile(r"(?<![A-Za-z0-9])pp(\d+)")
# A time in seconds or shorter units, one of several files of a process, and the day in Kineto's own
# rank-0.Apr_03_18_51_38.1102
_PART = re.compile(
    r"(?:^|[-_.])\d{9,}(?:\.\d+)?(?=$|[-_.])|_(?:part|mb)\d+(?:-\d+)?(?=$|_)|[-_.](?:Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec)(?=_\d\d_)"
)
# A pid, a time or an ordinal; not a part of "1.5" or "0.5B"
_NUMBERS = re.compile(r"(?:^|[-_]|\.(?=\d{3})|(?<!\d)\.)(?:pid[-_]?)?(\d+)(?=$|[-_]|\.(?!\d{1,2}(?!\d)))")
_MOST_ORDINAL = 9999  # a longer number is a pid or a time
_MOST_STEPS = 1000  # that step<A>-<B> stands for: no trace holds more, and B is a pid, a time or an ordinal
# Words that say what a file is and not whose
_GENERIC = frozenset({
    "trace", "traces", "prof", "profile", "profiles", "profiler", "profiling", "torch", "pytorch", "pt",
    "kineto", "nsys", "nsight", "report", "reports", "output", "outputs", "out", "log", "logs", "tb",
    "tensorboard", "plugins", "worker", "process", "data", "tmp", "json", "sqlite",
})  # fmt: skip
NAMELESS = "worker"


@dataclass(frozen=True)
class ForeignName:
    """What a foreign file name tells; None where it does not."""

    worker: str
    rank: int | None
    start: int | None
    stop: int | None  # half-open
    ordinal: int | None = None  # its rank if the trace itself tells none: trace_1.json, 1/trace.json


def told_by(path: PurePath) -> ForeignName:
    """What the name of a report tells, and its folders where the name is a generic one.

    path: relative to the folder that the reports were looked for in

    All ranks of one worker must come out with one name: rank, step, pid and time are no part of it.
    """
    stem = _SUFFIX.sub("", path.name)
    rank, step, ordinal = _RANK.search(stem), _STEP.search(stem), _ordinal(stem)
    worker = _plain(stem)
    for folder in [] if worker else reversed(path.parts[:-1]):
        rank = rank or _RANK.search(folder)
        worker = worker or _plain(folder)
        ordinal = _ordinal(folder) if ordinal is None else ordinal
    start, stop = _window(step) if step else (None, None)
    return ForeignName(worker or NAMELESS, int(rank[1]) if rank else None, start, stop, ordinal)


def _window(step: re.Match[str]) -> tuple[int, int]:
    """The steps of step<A>-<B>, half-open: up to B where it can be a last step, else A alone."""
    first, last = int(step[1]), int(step[2] or step[1])
    return first, (last if first < last < first + _MOST_STEPS else first) + 1


def stage_in_name(name: str) -> int | None:
    """The place in a pipeline that vLLM, SGLang and verl write into the names of their traces."""
    if place := _SGLANG.search(name):
        return int(place[3]) if place[3] else None
    row = _PLACE.search(name)
    stage = _STAGE.search(row[0]) if row else None
    return int(stage[1]) if stage else None


def _ordinal(text: str) -> int | None:
    """The tensor parallel rank of SGLang's names, or the one small number beside generic words."""
    if place := _SGLANG.search(text):
        return int(place[1])
    numbers = [int(number) for number in _NUMBERS.findall(_STEP.sub("", text))]
    one = len(numbers) == 1 and numbers[0] <= _MOST_ORDINAL and not _plain(text)
    return numbers[0] if one else None


def _plain(text: str) -> str:
    """A name without rank, step, place and numbers; "" where nothing but generic words is left."""
    left = _SGLANG.sub(_other_engine, _RANK.sub("", text))
    for pattern in (_STEP, _PLACE, _PART, _NUMBERS):
        left = pattern.sub("", left)
    left = left.strip("-_. ")
    words = [word.rstrip("0123456789") for word in re.split(r"[-_. ]+", left.lower())]
    return "" if all(not word or word in _GENERIC for word in words) else left


def _other_engine(place: re.Match[str]) -> str:
    """What tells ranks of equal tensor parallel rank: their data and pipeline parallel ones, where not 0."""
    return "".join(
        f"-{name}{number}"
        for name, number in zip(("dp", "pp"), place.groups()[1:], strict=True)
        if number and int(number)
    )
