"""Packages that only an extra of rlprof-ops brings, and what to type where one is not there."""

from __future__ import annotations

import sys
from importlib.util import find_spec

from rlprof_ops.errors import RlprofError

# As pyproject.toml has them, by the names under which they are imported.
EXTRAS = {
    "analyze": ("rich", "msgspec", "isal", "numpy", "pyarrow", "jinja2"),
    "export": ("tensorboard", "opentelemetry"),
    "ray": ("ray",),
    "submitit": ("submitit",),
    "torch": ("torch", "nvtx"),
}


class NotInstalled(RlprofError):
    """Packages of an extra that this Python lacks."""

    def __init__(self, *modules: str) -> None:
        extras = [name for name, brought in EXTRAS.items() if not set(brought).isdisjoint(modules)]
        super().__init__(
            f"{' and '.join(modules)} {'are' if len(modules) > 1 else 'is'} not installed for"
            f" {sys.executable}: pip install 'rlprof-ops[{','.join(extras)}]'"
        )


def need(*modules: str) -> None:
    """Raise NotInstalled, which names every one of `modules` that this Python lacks."""
    lacking = [name for name in modules if find_spec(name) is None]
    if lacking:
        raise NotInstalled(*lacking)


def brought(module: str | None) -> str | None:
    """The package of an extra that a module belongs to."""
    package = (module or "").partition(".")[0]
    return package if any(package in names for names in EXTRAS.values()) else None


def installed_version(package: str) -> str | None:
    """The version of an installed package; None where it is not installed."""
    from importlib import metadata

    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None
