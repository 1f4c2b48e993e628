"""Trainers as plugins: a folder here, or a package that a wheel names by an entry point of our group.

Such a package says in its `__init__.py`, which imports nothing:

    FOLLOWS = ("my_trainer.loop", ...)  # when one is imported, `adapter.install(name, module)` is called
    FRAMEWORKS = ("my_trainer",)        # names for `--framework`, of which `dialect.framework(name)` is told
    PHASES = {"train": ("update", ...)} # the report's phases -> its names for them, where no dialect says so

Each may be left out, and the module with it (docs/add_a_trainer.md). Entry points are looked up once in a
job, by the supervisor; the job's processes read the outcome in a variable.
"""

from __future__ import annotations

import os
from importlib import import_module

from rlprof_ops import env_names

TYPE_CHECKING = False  # see rlprof_ops/__init__.py
if TYPE_CHECKING:
    from collections.abc import Mapping

    from rlprof_ops.trainers.dialects import Framework

GROUP = "rlprof_ops.trainers"


def builtin() -> dict[str, str]:
    """Trainer -> package, of the folders here."""
    home = __path__[0]
    names = (name for name in sorted(os.listdir(home)) if name != "inject" and name.isidentifier())
    return {name: f"{__name__}.{name}" for name in names if os.path.isfile(f"{home}/{name}/__init__.py")}


def from_entry_points() -> dict[str, str]:
    """Trainer -> package, of the wheels that are installed for this Python."""
    from importlib import metadata

    return {point.name: point.value for point in metadata.entry_points(group=GROUP)}


def environment() -> dict[str, str]:
    """The variable that tells a job's processes what the entry points are."""
    found = ",".join(f"{name}={package}" for name, package in from_entry_points().items())
    return {env_names.TRAINERS: found} if found else {}


def followed(env: Mapping[str, str]) -> dict[str, tuple[str, str]]:
    """Module -> (trainer, its adapter), for the imports of this process. Never raises."""
    pairs = (item.partition("=") for item in env.get(env_names.TRAINERS, "").split(",") if "=" in item)
    found: dict[str, tuple[str, str]] = {}
    for trainer, package in ({name: value for name, _, value in pairs} | builtin()).items():
        try:
            follows = getattr(import_module(package), "FOLLOWS", ())
        except Exception as error:
            from rlprof_ops.runtime.process.hooks import complain

            complain(f"the trainer {trainer} ({package}) is not followed", error)
            continue
        found |= dict.fromkeys(follows, (trainer, f"{package}.adapter"))
    return found


def _frameworks(packages: Mapping[str, str]) -> dict[str, str]:
    """Name for `--framework` -> package."""
    return {
        name: package
        for package in packages.values()
        for name in getattr(import_module(package), "FRAMEWORKS", ())
    }


def frameworks() -> tuple[str, ...]:
    """The names for `--framework` that stand here; wheels may bring others."""
    return tuple(_frameworks(builtin()))


def phases() -> list[Mapping[str, tuple[str, ...]]]:
    """What each trainer here calls the phases of a step, by the report's word; first those of the dialects,
    from their module `<name>_names` where they have one: to load a whole dialect takes as long as ten
    reports.
    """
    packages = {trainer: import_module(package) for trainer, package in builtin().items()}
    found: list[Mapping[str, tuple[str, ...]]] = []
    for trainer, package in packages.items():
        if not hasattr(package, "FRAMEWORKS"):
            continue
        if os.path.isfile(f"{package.__path__[0]}/{trainer}_names.py"):
            found.append(import_module(f"{package.__name__}.{trainer}_names").PHASES)
        else:
            found += [get(name).phase_names for name in package.FRAMEWORKS]
    return [*found, *(getattr(package, "PHASES", {}) for package in packages.values())]


def checked(name: str) -> str:
    """The name of a dialect that there is.

    Raises:
        UsageError: for any other name, with the nearest one.
    """
    _package(name)
    return name


def get(name: str) -> Framework:
    """The dialect of that name. Raises UsageError as `checked`."""
    found: Framework = import_module(f"{_package(name)}.dialect").framework(name)
    return found


def _package(name: str) -> str:
    packages = _frameworks(builtin())
    if name not in packages:
        packages |= _frameworks(from_entry_points())
    if name not in packages:
        from rlprof_ops.errors import UsageError
        from rlprof_ops.request.problems import nearest, words

        raise UsageError(
            f"framework {name!r} is unknown; allowed are {words(packages)}.{nearest(name, tuple(packages))}"
        )
    return packages[name]
