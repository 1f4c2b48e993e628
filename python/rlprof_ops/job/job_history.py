"""Which run folder belongs to which job, kept in the user's own state folder: Slurm forgets jobs after
minutes.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from rlprof_ops.host import atomic, foreign

_KEPT = 1000
_MOST_BYTES = 4 << 20


@dataclass(frozen=True)
class Remembered:
    """One submitted job. `run` is its run folder, which may not exist yet; times are UTC nanoseconds."""

    job: str
    run: str
    name: str
    submitted_ns: int


def path(env: Mapping[str, str] | None = None) -> Path:
    """`$XDG_STATE_HOME/rlprof/jobs.jsonl`, or below ~/.local/state."""
    env = os.environ if env is None else env
    state = env.get("XDG_STATE_HOME") or os.path.join(
        env.get("HOME") or os.path.expanduser("~"), ".local", "state"
    )
    return Path(state) / "rlprof" / "jobs.jsonl"


def remember(entry: Remembered, env: Mapping[str, str] | None = None) -> None:
    """Append a line; two at once do not meet. A home that cannot be written is no error."""
    file = path(env)
    line = json.dumps(asdict(entry)) + "\n"
    with contextlib.suppress(OSError):
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with open(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), "ab", buffering=0) as out:
            out.write(line.encode())
    known = recall(env)
    if len(known) > 2 * _KEPT:
        _rewrite(file, known[-_KEPT:])


def _rewrite(file: Path, entries: list[Remembered]) -> None:
    with contextlib.suppress(OSError):
        atomic.write(file, "".join(json.dumps(asdict(entry)) + "\n" for entry in entries), mode=0o600)


def forget(runs: Iterable[Path], env: Mapping[str, str] | None = None) -> None:
    """Leave out the jobs of these run folders from now on."""
    gone = {str(run) for run in runs}
    known = recall(env)
    kept = [entry for entry in known if os.path.realpath(entry.run) not in gone and entry.run not in gone]
    if len(kept) < len(known):
        _rewrite(path(env), kept)


def recall(env: Mapping[str, str] | None = None) -> list[Remembered]:
    """All that are remembered, oldest first; lines that make no sense are left out."""
    found = []
    for line in foreign.tail(path(env), _MOST_BYTES).splitlines():
        with contextlib.suppress(ValueError):
            found.append(foreign.typed(foreign.parse(line), Remembered))
    return found


def folders(job: str, env: Mapping[str, str] | None = None) -> list[Path]:
    """The run folders of a job id, newest first: another cluster may have had the same number."""
    return [Path(known.run) for known in reversed(recall(env)) if known.job == job]
