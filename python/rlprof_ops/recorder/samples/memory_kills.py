"""Processes that the kernel has killed because their memory control group was full: it says nothing to them,
and counts the kills of each group.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

from rlprof_ops.host import processes

_UNLIMITED = 1 << 60
_ENDS_S = 10.0


@dataclass(frozen=True)
class _Group:
    """A control group: its folder, and the highest one that counts with it."""

    folder: Path
    root: Path

    @property
    def kills(self) -> int:
        """In version 2 of those below too; the file's name tells the version."""
        for name in ("memory.events", "memory.oom_control"):
            count = _fields(self.folder / name).get("oom_kill")
            if count is not None:
                return count
        return 0

    @property
    def limit_bytes(self) -> int:
        """The lowest limit from here upwards; 0 for none."""
        found = []
        for folder in (self.folder, *self.folder.parents):
            if not folder.is_relative_to(self.root):
                break
            found += [_number(folder / name) for name in ("memory.max", "memory.limit_in_bytes")]
        return min((limit for limit in found if 0 < limit < _UNLIMITED), default=0)


class MemoryKills:
    """What the groups of the processes that are watched have counted. Never raises."""

    def __init__(self, proc: str = "/proc", groups: str = "/sys/fs/cgroup") -> None:
        self._proc, self._root = Path(proc), Path(groups)
        self._groups: dict[int, _Group] = {}
        self._counted: dict[_Group, int] = {}
        self._rose: dict[_Group, float] = {}

    def look(self, alive: set[int]) -> list[tuple[int, int, str]]:
        """Of processes that have ended since the last look, those whose group has just counted a kill: pid,
        the group's limit in bytes (0: not known), and its name. One that ends may take seconds for it.
        """
        now = time.monotonic()
        counted = {group: group.kills for group in {*self._groups.values()}}
        for group, kills in counted.items():
            if kills > self._counted.get(group, kills):
                self._rose[group] = now
        found = []
        for pid in sorted(self._groups.keys() - alive):
            group = self._groups.pop(pid)
            if now - self._rose.get(group, -_ENDS_S) < _ENDS_S:
                found.append((pid, group.limit_bytes, f"/{group.folder.relative_to(group.root)}"))
        for pid in alive:
            lives_in = self._group_of(pid)
            # Version 1 shows a process that ends in the highest group (the kernel's proc_cgroup_show).
            if lives_in and (lives_in.folder != lives_in.root or pid not in self._groups):
                self._groups[pid] = lives_in
        self._counted = {group: counted.get(group, group.kills) for group in {*self._groups.values()}}
        return found

    def _group_of(self, pid: int) -> _Group | None:
        for controllers, path in processes.control_groups(pid, self._proc):
            root = self._root / "memory" if "memory" in controllers else self._root
            if not controllers or root != self._root:
                group = _Group(root / path.lstrip("/"), root)
                if any((group.folder / name).exists() for name in ("memory.events", "memory.oom_control")):
                    return group
        return None


def _fields(path: Path) -> dict[str, int]:
    try:
        words = [line.split() for line in path.read_text().splitlines()]
        return {name: int(value) for name, value in words}
    except (OSError, ValueError):
        return {}


def _number(path: Path) -> int:
    try:
        return int(path.read_text())
    except (OSError, ValueError):  # "max"
        return 0
