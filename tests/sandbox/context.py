"""What a command inside the sandbox sees of this machine: its environment, and the folders its Python
needs.
"""

from __future__ import annotations

import itertools
import os
import pwd
import stat
from collections.abc import Iterable, Mapping
from pathlib import Path


def words(argv: Iterable[str | os.PathLike[str]]) -> list[str]:
    return [os.fspath(word) for word in argv]


def under_tmp(paths: Iterable[Path]) -> tuple[str, ...]:
    return tuple(sorted({str(path) for path in paths if str(path).startswith("/tmp/")}))


def opened(paths: Iterable[Path]) -> tuple[str, ...]:
    """For each path below a folder that others may not enter: that folder's entry on the way."""
    found = set()
    for path in paths:
        way = [*reversed(path.resolve().parents), path.resolve()]
        for folder, entry in itertools.pairwise(way):
            if not folder.stat().st_mode & stat.S_IXOTH:
                found.add(str(entry))
                break
    return tuple(sorted(found))


def environment(user: str | None, extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """This process's environment without an outer Slurm's and pytest's variables, as the given user's."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("SLURM", "SBATCH_", "SRUN_", "PYTEST_", "TMPDIR"))
    }
    who = pwd.getpwnam(user or "root")
    kept |= {"HOME": who.pw_dir, "USER": who.pw_name, "LOGNAME": who.pw_name}
    for folder in ("/usr/local/sbin", "/usr/sbin", "/sbin"):
        if folder not in kept.get("PATH", "").split(":"):
            kept["PATH"] = f"{kept.get('PATH', '/usr/bin:/bin')}:{folder}"
    return kept | dict(extra or {})
