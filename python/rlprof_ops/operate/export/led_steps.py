"""Steps from the run folder's records; those of the processes that lead each once, as they come."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from rlprof_ops.recorder import rows
from rlprof_ops.recorder.record_file import FOLDER, RecordBlock, read_folder

_NANO = 1_000_000_000


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
    """Reads what is new since the last call. Only nodes on which a process leads are read a second time."""

    def __init__(self, run: Path) -> None:
        self._run = run
        self._told: dict[tuple[str, int, int], int] = {}
        self._sizes: dict[Path, int] = {}
        self._follower: set[Path] = set()

    def new(self) -> list[RecordedStep]:
        """In the order in which they began."""
        found = []
        for folder in sorted(self._run.glob(f"nodes/*/{FOLDER}")):
            size = sum(path.lstat().st_size for path in folder.glob("*.bin"))
            if folder.is_symlink() or folder in self._follower or self._sizes.get(folder) == size:
                continue
            self._sizes[folder] = size
            leads = False
            for block in read_folder(folder):
                for step in steps_of(block):
                    leads = True
                    key = step.worker, step.rank, step.pid
                    if step.step > self._told.get(key, 0):
                        self._told[key] = step.step
                        found.append(step)
            if not leads and any(_all_steps(folder)):
                self._follower.add(folder)
        return sorted(found, key=lambda step: step.begin_ns)


def _all_steps(folder: Path) -> Iterator[bool]:
    for block in read_folder(folder):
        if block.sections.get(rows.STEP):
            yield True


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
    layout = rows.LAYOUT[kind][0]
    data = block.sections.get(kind, b"")
    return layout.iter_unpack(data[: len(data) // layout.size * layout.size])
