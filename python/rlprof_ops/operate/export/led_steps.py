"""Steps from the run folder's records; those of the processes that lead each once, as they come."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from rlprof_ops.recorder import rows
from rlprof_ops.recorder.record_file import FOLDER, ReadSoFar, RecordBlock, read_folder

_NANO = 1_000_000_000
_GROWTH = 1.25


@dataclass(frozen=True)
class RecordedPhase:
    """All ranges of one name in a step: where the first began, how long they lasted, and without those
    inside them.
    """

    name: str
    begin_ns: int
    seconds: float
    own_s: float
    count: int


@dataclass(frozen=True)
class RecordedStep:
    """One step of one process."""

    worker: str
    rank: int
    pid: int
    leads: bool
    step: int
    begin_ns: int
    seconds: float
    phases: tuple[RecordedPhase, ...]

    @property
    def end_ns(self) -> int:
        return self.begin_ns + round(self.seconds * _NANO)


class NewSteps:
    """Reads what is new since the last call. A node on which no process leads so far is looked at again when
    its record has grown by a quarter, since most never have one.
    """

    def __init__(self, run: Path) -> None:
        self._run = run
        self._told: dict[tuple[str, int, int], int] = {}
        self._sizes: dict[Path, int] = {}
        self._read: dict[Path, ReadSoFar] = {}
        self._leading: set[Path] = set()

    def new(self, last: bool = False) -> list[RecordedStep]:
        """In the order in which they began. `last`: nobody asks again, and whatever has grown is read."""
        found = []
        for folder in sorted(self._run.glob(f"nodes/*/{FOLDER}")):
            size = sum(path.lstat().st_size for path in folder.glob("*.bin"))
            if folder.is_symlink() or not self._may_tell_more(folder, size, last):
                continue
            self._sizes[folder] = size
            for block in read_folder(folder, self._read.setdefault(folder, ReadSoFar())):
                for step in steps_of(block):
                    self._leading.add(folder)
                    key = step.worker, step.rank, step.pid
                    if step.step > self._told.get(key, 0):
                        self._told[key] = step.step
                        found.append(step)
        return sorted(found, key=lambda step: step.begin_ns)

    def _may_tell_more(self, folder: Path, size: int, last: bool) -> bool:
        """Whether a record of `size` bytes is worth reading; one that is smaller than before is another."""
        read = self._sizes.get(folder, 0)
        if last or folder in self._leading:
            return size != read
        return size < read or size > read * _GROWTH


def steps_of(block: RecordBlock, everyone: bool = False) -> Iterator[RecordedStep]:
    """Of one block: those of processes that lead, or of all."""
    names = block.names()
    wanted = {}
    for number, text in names.items():
        try:
            worker, rank, pid, leads = rows.parse_process(text)
        except ValueError:
            continue
        if leads or everyone:
            wanted[number] = worker, rank, pid, leads
    phases: dict[tuple[int, int], list[tuple[str, float, float, float, int]]] = {}
    for who, step, name, count, begin_s, seconds, own_s in _rows(block, rows.PHASE):
        if who in wanted:
            row = names.get(int(name), ""), begin_s, seconds, own_s, int(count)
            phases.setdefault((int(who), int(step)), []).append(row)
    for who, step, begin_ns, seconds in _rows(block, rows.STEP):
        if who not in wanted:
            continue
        told = tuple(
            RecordedPhase(name, int(begin_ns) + round(begin_s * _NANO), length, own_s, count)
            for name, begin_s, length, own_s, count in phases.get((int(who), int(step)), ())
        )
        yield RecordedStep(*wanted[int(who)], int(step), int(begin_ns), seconds, told)


def _rows(block: RecordBlock, kind: int) -> Iterator[tuple[float, ...]]:
    """The rows of one kind, without those that hold a NaN or an infinity."""
    layout = rows.LAYOUT[kind][0]
    data = block.sections.get(kind, b"")
    found = layout.iter_unpack(data[: len(data) // layout.size * layout.size])
    return (row for row in found if all(map(math.isfinite, row)))
