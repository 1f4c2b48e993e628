"""The profilers: a folder each, and those that other packages bring by the entry point group
`rlprof_ops.backends`.

A name is looked up without importing the others; entry points are read only for a name that no folder has.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Mapping
from fnmatch import fnmatchcase
from importlib import import_module
from typing import TYPE_CHECKING

from rlprof_ops.backends.contract import EMPTY, OK, TRUNCATED, Backend, Check, Spec, Verdict, Where
from rlprof_ops.backends.window_support import refusals
from rlprof_ops.errors import UsageError
from rlprof_ops.words import did_you_mean

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

GROUP = "rlprof_ops.backends"
DEFAULT = "nsight"  # of a capture that names none
OF_TIMELINES = "torch"  # of a Chrome trace under a name that tells nothing
ANYWHERE = Where()

__all__ = [
    "ANYWHERE",
    "DEFAULT",
    "EMPTY",
    "GROUP",
    "OK",
    "TRUNCATED",
    "Backend",
    "Check",
    "Verdict",
    "Where",
    "answering",
    "builtin",
    "every",
    "from_outside",
    "get",
    "is_known",
    "is_report",
    "is_secret",
    "masks",
    "names_allowed",
    "of_one_report",
    "of_report",
    "validate",
    "wraps",
]


@functools.cache
def builtin() -> tuple[str, ...]:
    """The names of the backends that rlprof-ops brings, told by their folders."""
    with os.scandir(os.path.dirname(__file__)) as entries:
        return tuple(sorted(entry.name for entry in entries if entry.is_dir() and entry.name[0] not in "_."))


@functools.cache
def installed() -> Mapping[str, EntryPoint]:
    """Backends of other packages by name; one under a name of ours does not count."""
    from importlib.metadata import entry_points

    return {entry.name: entry for entry in entry_points(group=GROUP) if entry.name not in builtin()}


def names_allowed() -> tuple[str, ...]:
    """Every name that a request may have here."""
    return (*builtin(), *sorted(installed()))


def is_known(name: str) -> bool:
    """Whether a request may have this name here."""
    return name in builtin() or name in installed()


@functools.cache
def get(name: str) -> Backend:
    """The backend called `name`.

    Raises:
        UsageError: there is none, with the nearest name; or its package cannot be loaded, and why.
    """
    if name in builtin():
        found: Backend = import_module(f"{__name__}.{name}").BACKEND
        return found
    if name not in installed():
        allowed = names_allowed()
        hint = did_you_mean(name, allowed)
        raise UsageError(f"unknown backend {name!r}: allowed are {', '.join(allowed)}.{hint}")
    entry = installed()[name]
    try:
        loaded = entry.load()
    except Exception as error:
        raise UsageError(f"the backend {name!r} ({entry.value}) cannot be loaded: {error}") from error
    if not isinstance(loaded, Backend) or loaded.name != name:
        raise UsageError(f"the backend {name!r} ({entry.value}) is no rlprof_ops Backend of that name")
    return loaded


def wraps(name: str) -> bool:
    """Whether processes that a capture of this backend selects have to be started under its profiler."""
    return is_known(name) and bool(get(name).wrap)


def answering(name: str) -> str:
    """The backend that takes a capture on demand in this process; "auto" is the one that it was started
    under, else one that needs no start.
    """
    if name != "auto":
        return name
    return next(each.name for each in sorted(every(), key=lambda each: not each.wrap) if each.answers_here())


def from_outside(name: str) -> bool:
    """Whether a supervisor opens windows of this backend, in processes that know no step."""
    return is_known(name) and get(name).windows_from_outside


def of_one_report(name: str | None) -> bool:
    """Whether one report of this backend holds all windows of its process."""
    return bool(name) and is_known(str(name)) and get(str(name)).one_report


def every() -> tuple[Backend, ...]:
    """The backends that rlprof-ops brings."""
    return tuple(map(get, builtin()))


def of_report(name: str) -> Backend | None:
    """The backend that writes files of this name or whose reports they are made of, told by how it ends; the
    longest ending counts.
    """
    fits = [
        (len(end), each) for each in every() for end in each.suffixes + each.derived if name.endswith(end)
    ]
    return max(fits, key=lambda fit: fit[0])[1] if fits else None


def is_report(path: str) -> bool:
    """Whether a file can be a report: by an ending that only a profiler writes, or by another one of a
    backend in whose folder it lies.
    """
    *folders, name = path.split("/")
    return any(
        name.endswith(each.telling) or (each.name in folders and name.endswith(each.suffixes))
        for each in every()
    )


def masks(name: str) -> bool:
    """Whether secrets are taken out of the report of this name before it leaves the node."""
    return name.endswith(tuple(end for each in every() for end in each.masked))


def is_secret(path: str) -> bool:
    """Whether a tool leaves in the file `path` the whole environment of a process, beside its reports."""
    *folders, name = path.split("/")
    return any(
        each.name in folders and any(fnmatchcase(name, pattern) for pattern in each.secret_files)
        for each in every()
    )


def validate(spec: Spec, where: Where = ANYWHERE) -> Verdict:
    """The verdict on a capture, of the table of windows and of its backend: the plan, the job, the dialects
    and the workers ask here.
    """
    try:
        backend = get(spec.backend)
    except UsageError as error:  # of a package that is not on this machine
        return Verdict((str(error),))
    refused = refusals(backend, spec, where.driver)
    return Verdict(refused) if refused else backend.validate(spec, where)
