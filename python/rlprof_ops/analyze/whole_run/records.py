"""Reads the nodes' records into columns. A node is read by itself and gives what the page needs."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import numpy as np
import numpy.typing as npt

from rlprof_ops.analyze.whole_run.looks import EngineLooks, EngineRows, none
from rlprof_ops.recorder import rows
from rlprof_ops.recorder.detect.phase_words import CALLS, GENERATION, SEASONAL, WAITING
from rlprof_ops.recorder.record_file import FOLDER, RecordBlock, read_folder

_FEW_NODES = 8  # read in this process
_LETTERS = {"B": "u1", "H": "<u2", "I": "<u4", "q": "<i8", "f": "<f4"}

Floats = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]
Table = npt.NDArray[np.void]  # rows of named fields
Column = npt.NDArray[np.number]
Interval = tuple[int, int]  # Unix nanoseconds


@dataclass(frozen=True)
class ProcessSteps:
    """The steps of one process, in order. `busy_s`: the phases in which it waits for nobody; the whole step
    where it marks none. `phases` (own seconds) are kept of the process that leads, `generated_s` (from the
    step's begin to the end of its generation, NaN: none) of all. `calls`: of rewards and tools, the step, how
    many and their seconds, a row a step that has any.
    """

    node: str
    worker: str
    rank: int
    pid: int
    leads: bool
    step: Integers
    begin_ns: Integers
    seconds: Floats
    busy_s: Floats
    generated_s: Floats
    phases: dict[str, Floats] = field(default_factory=dict)
    calls: dict[str, tuple[Integers, Integers, Floats]] = field(default_factory=dict)


@dataclass(frozen=True)
class RecordedNode:
    """One node. `engines`: what its engines said, over the whole run. `curves`: the samples within the
    captured steps, by what they are of: columns of time (ns), and four figures.
    """

    node: str
    processes: tuple[ProcessSteps, ...]
    engines: EngineLooks
    curves: dict[str, npt.NDArray[np.float64]]


def has_records(root: Path) -> bool:
    return any(root.glob(f"nodes/*/{FOLDER}/*.bin"))


def read_all(root: Path, captured: Sequence[Interval], workers: int) -> list[RecordedNode]:
    """Every node's record in a run folder, by name."""
    folders = sorted(
        path for path in root.glob(f"nodes/*/{FOLDER}") if path.is_dir() and not path.is_symlink()
    )
    read = partial(read_node, tuple(captured))
    if len(folders) <= _FEW_NODES or workers <= 1:
        found: Iterable[RecordedNode] = map(read, folders)
    else:
        from rlprof_ops.analyze.run.worker_pool import each

        found = each(read, folders, min(workers, len(folders)), _killed)
    return sorted(found, key=lambda record: record.node)


def _killed(folder: Path) -> RecordedNode:
    return RecordedNode(folder.parent.name, (), none(), {})


def read_node(captured: Sequence[Interval], folder: Path) -> RecordedNode:
    """One node's record; `captured` are the times of which its samples are kept."""
    told: dict[str, list[Table]] = defaultdict(list)
    marked: dict[tuple[str, str], list[Table]] = defaultdict(list)
    curves: dict[str, list[Floats]] = defaultdict(list)
    engines = EngineRows()
    last: dict[str, int] = defaultdict(int)
    for block in read_folder(folder):
        names = block.names()
        steps = table(block, rows.STEP)
        phases = table(block, rows.PHASE)
        for who in np.unique(steps["process"]):
            # Only the first of several trainers that count from 1, each with blocks of its own.
            name = names.get(int(who), "")
            phases = phases[(phases["process"] != who) | (phases["step"] > last[name])]
            mine = steps[(steps["process"] == who) & (steps["step"] > last[name])]
            if len(mine):
                told[name].append(mine)
                last[name] = int(mine["step"].max())
        pairs = phases["process"].astype(np.int64) << 16 | phases["name"]
        for pair in np.unique(pairs):
            key = names.get(int(pair) >> 16, ""), names.get(int(pair) & 0xFFFF, "")
            marked[key].append(phases[pairs == pair])
        _add_curves(curves, block, names, captured)
        engines.add(block.base_ns, names, table(block, rows.ENGINE))
    node = folder.parent.name
    processes = [_process(node, name, parts, marked) for name, parts in sorted(told.items())]
    return RecordedNode(
        node,
        tuple(each for each in processes if each is not None),
        engines.looks(),
        {name: np.concatenate(parts, axis=1) for name, parts in sorted(curves.items())},
    )


def table(block: RecordBlock, kind: int) -> Table:
    """The rows of one kind as a structured array, without those that hold a NaN or an infinity."""
    layout, names = rows.LAYOUT[kind]
    formats = [_LETTERS[letter] for letter in layout.format.lstrip("<")]
    data = block.sections.get(kind, b"")
    found = np.frombuffer(
        data, np.dtype(list(zip(names, formats, strict=True))), count=len(data) // layout.size
    )
    finite = np.logical_and.reduce([np.isfinite(found[name]) for name in names])
    return found if finite.all() else found[finite]


def _process(
    node: str,
    name: str,
    parts: list[Table],
    marked: dict[tuple[str, str], list[Table]],
) -> ProcessSteps | None:
    try:
        worker, rank, pid, leads = rows.parse_process(name)
    except ValueError:
        return None
    told = np.concatenate(parts)
    step, first = np.unique(told["step"], return_index=True)
    told = told[first]
    seconds = told["seconds"].astype(np.float64)
    phases: dict[str, Floats] = {}
    calls: dict[str, tuple[Integers, Integers, Floats]] = {}
    busy, marks_any = np.zeros(len(step)), False
    generated = np.full(len(step), np.nan)
    for (who, phase), found in marked.items():
        if who != name:
            continue
        table_of = np.concatenate(found)
        place = np.searchsorted(step, table_of["step"])
        known = (place < len(step)) & (step[np.minimum(place, len(step) - 1)] == table_of["step"])
        place, table_of = place[known], table_of[known]
        own = np.zeros(len(step))
        own[place] = table_of["own_seconds"]
        if GENERATION.search(phase):
            end = table_of["begin_s"].astype(np.float64) + table_of["seconds"]
            generated[place] = np.fmax(generated[place], end)
        if leads:
            phases[phase] = own
        if CALLS.search(phase):
            whole = table_of["step"].astype(np.int64), table_of["count"].astype(np.int64)
            calls[phase] = *whole, table_of["seconds"].astype(np.float64)
        if not WAITING.search(phase) and not SEASONAL.search(phase):
            busy += own
            marks_any = True
    return ProcessSteps(
        node, worker, rank, pid, leads, step.astype(np.int64), told["begin_ns"].astype(np.int64), seconds,
        busy if marks_any else seconds, generated, phases, calls,
    )  # fmt: skip


def _add_curves(
    curves: dict[str, list[Floats]], block: RecordBlock, names: dict[int, str], captured: Sequence[Interval]
) -> None:
    gpu, engine = table(block, rows.GPU), table(block, rows.ENGINE)
    for number in np.unique(gpu["gpu"]):
        of = gpu[gpu["gpu"] == number]
        figures = (of["busy_percent"], of["memory_mib"], of["power_w"], of["sm_mhz"])
        _keep(curves, f"GPU {number}", block, of["t"], figures, captured)
    for number in np.unique(engine["engine"]):
        of = engine[engine["engine"] == number]
        figures = (of["running"], of["waiting"], of["cache_permille"], of["tokens_s"])
        _keep(curves, names.get(int(number), "engine"), block, of["t"], figures, captured)


def _keep(
    curves: dict[str, list[Floats]],
    name: str,
    block: RecordBlock,
    tenths: Column,
    figures: Sequence[Column],
    captured: Sequence[Interval],
) -> None:
    t_ns = block.base_ns + tenths.astype(np.int64) * rows.TENTH_NS
    inside = np.zeros(len(t_ns), bool)
    for begin, end in captured:
        inside |= (t_ns >= begin) & (t_ns <= end)
    if inside.any():
        columns = [t_ns.astype(np.float64), *(column.astype(np.float64) for column in figures)]
        curves[name].append(np.stack(columns)[:, inside])
