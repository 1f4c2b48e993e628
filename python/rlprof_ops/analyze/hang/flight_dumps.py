"""Dumps of PyTorch's flight recorder, as pickle or as JSON, from anywhere and by anybody."""

from __future__ import annotations

import gc
import os
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from rlprof_ops.analyze.hang.plain_pickle import plain_pickle
from rlprof_ops.host import foreign
from rlprof_ops.runtime.on_demand.group_state import is_open
from rlprof_ops.runtime.on_demand.torch_fr import ASKED_SUFFIX
from rlprof_ops.runtime.on_demand.torch_fr import FOLDER as TORCH_FR

MOST_BYTES = 64 << 20  # 2,000 entries are 0.5 MB
_MOST_FILES = 1 << 14
_MOST_KEPT, _MOST_OPEN = 32, 4096  # entries of a rank in a group
_NAME = re.compile(r"(.*?)(\d+)((?:\.(?:json|pickle|pkl))?)\Z", re.DOTALL)
_LOOKS_LIKE_ONE = re.compile(r"trace|rank|flight|fr_")


@dataclass(frozen=True)
class FlightDump:
    """What one rank had recorded. `entries` are as they were enqueued: all that are open, and the latest of
    each group.
    """

    rank: int
    path: Path
    entries: list[dict[str, object]]
    groups: dict[str, tuple[str, tuple[int, ...]]]  # name -> description, ranks
    has_lost: bool  # older entries have made room for newer ones

    @property
    def was_asked_for(self) -> bool:
        """Whether a process of a job wrote it because it was asked to, and not torch after a timeout."""
        return self.process != ("", None) and self.path.suffix == ASKED_SUFFIX

    @property
    def process(self) -> tuple[str, int | None]:
        """Node and pid of a dump that came home from a job; "" and None of any other."""
        of_job, node, folder, pid = ("", "", "", "", *self.path.parts[:-1])[-4:]
        ours = of_job == "nodes" and folder == TORCH_FR and pid.isdecimal()
        return (node, int(pid)) if ours else ("", None)


@dataclass
class FoundDumps:
    """`worlds`: dumps whose ranks count together, by rank; `unread`: path and reason."""

    worlds: list[dict[int, FlightDump]] = field(default_factory=list)
    unread: list[tuple[Path, str]] = field(default_factory=list)


def read_folder(folder: Path) -> FoundDumps:
    """Every dump below `folder`; of a run folder those that came home, whatever else it holds."""
    was_on = gc.isenabled()
    gc.disable()  # a million small dicts, none of them garbage
    try:
        return _read_folder(folder)
    finally:
        if was_on:
            gc.enable()


def _read_folder(folder: Path) -> FoundDumps:
    found = FoundDumps()
    parts: dict[tuple[str, tuple[int, ...], Path], dict[int, FlightDump]] = defaultdict(dict)
    for path, prefix, rank in _candidates(_homes(folder)):
        try:
            dump = read_dump(path, rank)
        except (OSError, ValueError) as error:
            if _LOOKS_LIKE_ONE.search(path.name):
                found.unread.append((path, foreign.reason_of(error)))
            continue
        largest = max((ranks for _, ranks in dump.groups.values()), key=len, default=())
        part = parts[prefix, largest if _is_everyone(largest) else (), path.parent]
        if rank not in part or _worth(dump) > _worth(part[rank]):
            part[rank] = dump
    found.worlds = _together(parts)
    return found


def _together(
    parts: Mapping[tuple[str, tuple[int, ...], Path], dict[int, FlightDump]],
) -> list[dict[int, FlightDump]]:
    """One world may have a folder a node; a trainer and a rollout server both have a rank 0."""
    worlds: dict[tuple[str, tuple[int, ...]], list[dict[int, FlightDump]]] = defaultdict(list)
    for (prefix, size, _), part in parts.items():
        same = worlds[prefix, size]
        for world in same:
            if not world.keys() & part.keys():
                world.update(part)
                break
        else:
            same.append(part)
    return sorted((world for same in worlds.values() for world in same), key=len, reverse=True)


def _is_everyone(ranks: tuple[int, ...]) -> bool:
    return ranks == tuple(range(len(ranks)))


def _worth(dump: FlightDump) -> tuple[bool, int]:
    """Of two dumps of a rank the one with stacks counts, then the later one."""
    last = dump.entries[-1] if dump.entries else {}
    return bool(last.get("frames")), foreign.whole(last.get("time_created_ns")) or 0


def _homes(folder: Path) -> list[Path]:
    if not (folder / "run.json").exists():
        return [folder]
    return sorted((folder / "nodes").glob(f"*/{TORCH_FR}"))


def _candidates(homes: Iterable[Path]) -> Iterator[tuple[Path, str, int]]:
    count = 0
    for here, folders, names in (found for home in homes for found in os.walk(home)):
        folders.sort()
        for name in sorted(names):
            matched = _NAME.match(name)
            if matched and len(matched[2]) < 9 and count < _MOST_FILES:
                count += 1
                yield Path(here, name), matched[1], int(matched[2])


def read_dump(path: Path, rank: int) -> FlightDump:
    """One dump. Raises OSError, and ValueError for what is none."""
    raw = foreign.read_bytes(path, MOST_BYTES)
    found = foreign.an_object(foreign.parse(raw) if raw[:1] in (b"{", b"[") else plain_pickle(raw))
    if "version" not in found or "pg_config" not in found:
        raise ValueError("it is no dump of the flight recorder")
    entries = [each for each in foreign.a_list(found.get("entries")) if isinstance(each, dict)]
    groups = {}
    for name, config in foreign.an_object(found["pg_config"]).items():
        described = foreign.an_object(config)
        ranks = [int(word) for word in re.findall(r"\b\d{1,8}\b", foreign.text(described.get("ranks")))]
        groups[foreign.text(name)] = (foreign.text(described.get("desc")), tuple(sorted({*ranks})))
    has_lost = bool(entries and foreign.whole(entries[0].get("record_id")))
    return FlightDump(rank, path, _latest(entries), groups, has_lost)


def _latest(entries: list[dict[str, object]]) -> list[dict[str, object]]:
    """512 ranks with 2,000 entries each are 1 GB of memory, of which the ends matter."""
    seen: Counter[str] = Counter()
    kept = []
    for entry in reversed(entries):
        named = entry.get("process_group")
        name = str(named[0])[:200] if isinstance(named, tuple | list) and named else ""
        seen[name] += 1
        if seen[name] <= _MOST_KEPT or (is_open(entry) and seen[name] <= _MOST_OPEN):
            kept.append(entry)
    return kept[::-1]
