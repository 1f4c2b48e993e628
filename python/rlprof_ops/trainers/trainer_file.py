"""A trainer's own YAML file with what it inherits: parents merged below it, plain `${path}` resolved."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Any

from rlprof_ops.request.problems import Problem, RequestError
from rlprof_ops.request.yaml_file import read_file
from rlprof_ops.trainers.hydra import parse_value, read_settings
from rlprof_ops.trainers.hydra_defaults import DEPTH, Composition, is_hydra, merge

_PATH = re.compile(r"\$\{([A-Za-z_][\w.-]*)\}", re.ASCII)
_SELECT = re.compile(r"\$\{oc\.select:\s*([A-Za-z_][\w.-]*)\s*(?:,\s*([^{}]*))?\}", re.ASCII)


class UnknownWorld(ValueError):
    """A configuration does not tell how many ranks a worker has; the text says why."""


def read_inherited(path: str, depth: int = 0) -> dict[str, Any]:
    """A file with what its `defaults:` names: Hydra's list of groups, or NeMo RL's inheritance.

    NeMo RL names one parent file or several, relative to the file itself; a mapping with `_override_: true`
    replaces the parent's instead of being merged into it.

    Raises:
        RequestError: a file cannot be read, is no mapping, or inherits from itself.
    """
    if depth > DEPTH:
        raise RequestError(
            [Problem(f"inherits through more than {DEPTH} files; is it its own parent?", path)]
        )
    own = read_settings(read_file(path), path)
    if is_hydra(own):
        return Composition(os.path.dirname(path)).primary(path, own)
    parents = own.pop("defaults", None)
    names = [parents] if isinstance(parents, str) else parents if isinstance(parents, list) else []
    merged: dict[str, Any] = {}
    for name in names:
        if isinstance(name, str) and name.endswith((".yaml", ".yml")):
            parent = os.path.join(os.path.dirname(path), name)
            merged = merge(merged, read_inherited(parent, depth + 1))
    return merge(merged, own)


def dig_resolved(tree: Mapping[str, Any], *path: str, depth: int = 0) -> Any:
    """The value at a path, with `${other.path}` followed; an interpolation that computes stays text."""
    found: Any = tree
    for at, key in enumerate(path):
        if isinstance(found, str) and depth < DEPTH:
            target = _followed(tree, found, depth)
            found = target
        if not isinstance(found, Mapping):
            return None
        found = found.get(key)
        if found is None and at + 1 < len(path):
            return None
    return _followed(tree, found, depth) if isinstance(found, str) else found


def _followed(tree: Mapping[str, Any], text: str, depth: int) -> Any:
    if depth >= DEPTH:
        return text
    match = _PATH.fullmatch(text)
    if match:
        return dig_resolved(tree, *match[1].split("."), depth=depth + 1)
    match = _SELECT.fullmatch(text)
    if match:
        found = dig_resolved(tree, *match[1].split("."), depth=depth + 1)
        return parse_value(match[2].strip()) if found is None and match[2] is not None else found
    return text


def whole_number(tree: Mapping[str, Any], *path: str) -> int | None:
    """A count at a path; None where there is none or null.

    Raises:
        UnknownWorld: what is there is no whole number from 0.
    """
    value = dig_resolved(tree, *path)
    if value is None:
        return None
    if isinstance(value, str) and value.strip().isdecimal():
        return int(value)
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise UnknownWorld(f"{'.'.join(path)} is {value!r}, which is no count")
    return value
