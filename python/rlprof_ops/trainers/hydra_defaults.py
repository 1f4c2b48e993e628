"""A Hydra configuration with the files of its `defaults:` list, as far as they lie beside it.

Hydra itself is where the trainer is; what reads here runs on login nodes without it, and one reading is one
answer: tests hold it against Hydra's.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from rlprof_ops.request.problems import Problem, RequestError
from rlprof_ops.request.yaml_file import read_file
from rlprof_ops.trainers.hydra import dig, read_settings

DEPTH = 20
_PACKAGE = re.compile(r"^#\s*@package\s+(\S+)", re.MULTILINE)
_CHOICE = re.compile(r"\$\{([\w/]+)\}", re.ASCII)


@dataclass
class Composition:
    """Reads the files below one folder; a file that is not there (a search path's) adds nothing.

    Attributes:
        root: the folder of the primary configuration.
        choices: group -> the option that was taken, for `${group}` in later entries.
        overridden: group -> the option that an `override` entry names.
    """

    root: str
    choices: dict[str, str] = field(default_factory=dict)
    overridden: dict[str, str] = field(default_factory=dict)

    def primary(self, path: str, own: Mapping[str, Any]) -> dict[str, Any]:
        """The configuration of a file whose content is `own`. Raises RequestError."""
        return self._with_defaults(path, dict(own), "", "", 0)

    def _with_defaults(
        self, path: str, own: dict[str, Any], group: str, package: str, depth: int
    ) -> dict[str, Any]:
        if depth > DEPTH:
            raise RequestError(
                [Problem(f"inherits through more than {DEPTH} files; is it its own parent?", path)]
            )
        entries = own.pop("defaults", None)
        entries = entries if isinstance(entries, list) else []
        for entry in entries:
            for key, option in entry.items() if isinstance(entry, Mapping) else ():
                if str(key).startswith("override ") and not depth:
                    self.overridden[str(key).removeprefix("override ").strip().strip("/")] = str(option)
        if "_self_" not in entries:
            entries = [*entries, "_self_"]
        merged: dict[str, Any] = {}
        for entry in entries:
            found = _placed(own, package) if entry == "_self_" else self._entry(entry, group, package, depth)
            merged = merge(merged, found)
        return merged

    def _entry(self, entry: Any, group: str, package: str, depth: int) -> dict[str, Any]:
        """What one entry adds: `name`, `group/name@package` or `group@package: name`."""
        key, option = next(iter(entry.items()), ("", None)) if isinstance(entry, Mapping) else (entry, "")
        key = str(key).removeprefix("optional ").strip()
        if not key or key.startswith("override ") or option is None or isinstance(option, list):
            return {}
        key, _, at = key.partition("@")
        if option == "":
            key, _, option = key.rpartition("/")
        base = "" if key.startswith("/") else group
        own_group = os.path.normpath(os.path.join(base, key.strip("/"))) if base or key else ""
        own_group = "" if own_group == "." else own_group
        name = self.overridden.get(f"{own_group}@{at}" if at else own_group, str(option))
        name = _CHOICE.sub(lambda match: self.choices.get(match[1], match[0]), name)
        self.choices.setdefault(own_group, name)
        path = os.path.join(self.root, own_group, f"{name.removesuffix('.yaml')}.yaml")
        if not os.path.isfile(path):
            return {}
        text = read_file(path)
        header = _PACKAGE.search(text)
        where = at or (header[1] if header else "")
        return self._with_defaults(
            path, read_settings(text, path), own_group, _package(where, own_group, group, package), depth + 1
        )


def _package(where: str, own_group: str, group: str, package: str) -> str:
    """The place of a file in the whole: `where` below its parent's package, by default its group."""
    if where == "_here_":
        return package
    if where == "_global_" or where.startswith("_global_."):
        return where.removeprefix("_global_").strip(".")
    if not where or where == "_group_":
        where = (
            own_group[len(group) :].strip("/").replace("/", ".") if own_group.startswith(group) else own_group
        )
    return ".".join(part for part in (package, where) if part)


def _placed(own: dict[str, Any], package: str) -> dict[str, Any]:
    for key in reversed(package.split(".") if package else []):
        own = {key: own}
    return own


def is_hydra(own: Mapping[str, Any]) -> bool:
    """Whether a file's `defaults:` is Hydra's: none of its entries names a file by its ending."""
    entries = dig(own, "defaults")
    return isinstance(entries, list) and not any(
        isinstance(entry, str) and entry.endswith((".yaml", ".yml")) for entry in entries
    )


def merge(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """`above` over `below`, mappings merged key by key."""
    found = dict(below)
    for key, value in above.items():
        old = found.get(key)
        if isinstance(value, Mapping):
            value = dict(value)
            replaces = value.pop("_override_", False)
            found[key] = merge(old if isinstance(old, Mapping) and not replaces else {}, value)
        else:
            found[key] = value
    return found
