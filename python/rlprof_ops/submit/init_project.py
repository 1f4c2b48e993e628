"""`rlprof init`: everything a job needs, put into a folder that all nodes see."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from rlprof_ops.errors import RlprofError, UsageError
from rlprof_ops.job.knobs import home

PACKAGE = Path(__file__).resolve().parents[1]
_LEFT_OUT = {"constraints.txt", "setup_test_machine.sh", "site.env"}  # as in setup.py
_USERS_OWN = {"profile.yaml"}  # never replaced once it is there


@dataclass(frozen=True)
class Put:
    """What was done: paths relative to the folder."""

    written: tuple[str, ...]
    same: tuple[str, ...]
    kept: tuple[str, ...]


def sources(with_package: bool) -> Iterator[tuple[str, Path]]:
    """(path in the project, file here) of the whole set."""
    base = home()
    yield "ray.sub", base / "ray.sub"
    for folder in ("scripts", "env"):
        for file in sorted((base / folder).rglob("*")):
            if file.is_file() and file.name not in _LEFT_OUT:
                yield str(file.relative_to(base)), file
    yield "profile.yaml", PACKAGE / "submit" / "profile_example.yaml"
    if with_package:
        for file in sorted(PACKAGE.rglob("*")):
            inside = file.relative_to(PACKAGE)
            if file.is_file() and "__pycache__" not in inside.parts and inside.parts[0] != "job_files":
                yield f"python/rlprof_ops/{inside}", file


def put(folder: Path, *, with_package: bool = True, force: bool = False) -> Put:
    """Copy the set into `folder`. Safe to repeat: equal files are left, a changed one is replaced only with
    `force`.

    Raises:
        UsageError: files there differ from ours; nothing was written.
        RlprofError: the folder cannot be written.
    """
    wanted = dict(sources(with_package))
    missing = [name for name, file in wanted.items() if not file.is_file()]
    if missing:
        raise RlprofError(
            f"{home()} is not whole: {', '.join(missing[:3])} not there. Install rlprof-ops again, or set"
            " RLPROF_HOME."
        )
    present = {name for name in wanted if (folder / name).exists()}
    same = {name for name in present if _equal(folder / name, wanted[name])}
    kept = (present - same) & _USERS_OWN
    differing = sorted(present - same - kept)
    if differing and not force:
        shown = ", ".join(differing[:5]) + (f" and {len(differing) - 5} more" if len(differing) > 5 else "")
        raise UsageError(
            f"{folder}: {shown} differ from this version's. Nothing was written; --force replaces them."
        )
    written = [name for name in wanted if name not in same and name not in kept]
    try:
        for name in written:
            _copy(wanted[name], folder / name)
    except OSError as error:
        raise RlprofError(f"{folder}: {error.strerror or error} ({error.filename})") from error
    return Put(tuple(written), tuple(sorted(same)), tuple(sorted(kept)))


def _equal(there: Path, ours: Path) -> bool:
    return there.is_file() and there.read_bytes() == ours.read_bytes()


def _copy(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = target.with_name(f".{target.name}.new")
    shutil.copyfile(source, temporary)
    # Not copymode: an install may be read-only, or readable by its owner alone.
    temporary.chmod(0o755 if source.stat().st_mode & 0o100 else 0o644)
    temporary.replace(target)  # a job that reads the old file keeps it
