"""A request's YAML file as plain data, with the line and column of every value and key."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import yaml

from rlprof_ops.request.problems import Problem, RequestError
from rlprof_ops.words import did_you_mean

if TYPE_CHECKING:
    from rlprof_ops.request.model import ProfileRequest

Path = tuple[Any, ...]
MAX_BYTES = 1 << 20

_INT = re.compile(r"[-+]?[0-9]{1,18}", re.ASCII)
_WORDS = ("null", "true", "false", "yes", "no", "on", "off", "y", "n")
_FLOAT = re.compile(r"[-+]?([0-9]+\.[0-9]*|\.[0-9]+|[0-9]+(?=[eE]))([eE][-+]?[0-9]+)?", re.ASCII)


def read_file(path: str) -> str:
    """The file's text. Raises RequestError when it cannot be read."""
    try:
        with open(path, "rb") as file:
            data = file.read(MAX_BYTES + 1)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        near = nearest_file(path) if isinstance(error, FileNotFoundError) else ""
        raise RequestError([Problem(f"cannot be read: {reason}.{near}", path)]) from None
    if len(data) > MAX_BYTES:
        raise RequestError(
            [Problem(f"over {MAX_BYTES} bytes; a request or a trainer's configuration is shorter", path)]
        )
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise RequestError([Problem(f"not UTF-8 text: {error.reason} at byte {error.start}", path)]) from None


def nearest_file(path: str) -> str:
    """` Did you mean 'x.yaml'?`, of the files that lie where this one does not."""
    folder, name = os.path.split(path)
    try:
        return did_you_mean(name, os.listdir(folder or "."))
    except OSError:
        return ""


def parse_yaml(
    text: str, name: str, read: Callable[[yaml.Node], Any] | None = None
) -> tuple[Any, dict[Path, str], dict[Path, str]]:
    """Read YAML with the scalars of YAML 1.2, so that an unquoted `3:5` is text and not 185 (base 60).
    `read`: of a scalar, where another program reads the file by other rules.

    Returns:
        data, where each value was written, where each key was written; places are `name:line:column`, from 1.

    Raises:
        RequestError: not YAML, several documents, a key twice, a value inside itself.
    """
    try:
        root = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f"{name}:{mark.line + 1}:{mark.column + 1}" if mark else name
        raise RequestError([Problem(f"not YAML: {error.problem or error.context}", where)]) from None
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise RequestError(
            [Problem(f"not YAML: {str(error).splitlines()[0] if str(error) else 'too deep'}", name)]
        ) from None
    walker = _Walker(name, read or scalar)
    if root is None:
        return None, {(): name}, {}
    try:
        data = walker.convert(root, (), ())
    except RecursionError:
        raise RequestError([Problem("not a request: nested too deeply", name)]) from None
    if walker.problems:
        raise RequestError(walker.problems)
    return data, walker.values, walker.keys


class _Walker:
    def __init__(self, name: str, read: Callable[[yaml.Node], Any]) -> None:
        self.name = name
        self.scalar = read
        self.values: dict[Path, str] = {}
        self.keys: dict[Path, str] = {}
        self.problems: list[Problem] = []
        self.budget = 100_000  # aliases inside aliases grow without bound

    def where(self, node: yaml.Node) -> str:
        return f"{self.name}:{node.start_mark.line + 1}:{node.start_mark.column + 1}"

    def convert(self, node: yaml.Node, path: Path, parents: tuple[int, ...]) -> Any:
        self.budget -= 1
        if id(node) in parents or self.budget == 0:
            self.problems.append(Problem("a value inside itself, or aliases without end", self.where(node)))
        if id(node) in parents or self.budget <= 0:
            return None
        self.values[path] = self.where(node)
        inner = (*parents, id(node))
        if isinstance(node, yaml.MappingNode):
            return self.mapping(node, path, inner)
        if isinstance(node, yaml.SequenceNode):
            return [self.convert(child, (*path, i), inner) for i, child in enumerate(node.value)]
        return self.scalar(node)

    def mapping(self, node: yaml.MappingNode, path: Path, parents: tuple[int, ...]) -> dict[Any, Any]:
        found: dict[Any, Any] = {}
        merges = []
        for key_node, value_node in node.value:
            if key_node.tag == "tag:yaml.org,2002:merge":
                merges.append(value_node)
            elif not isinstance(key_node, yaml.ScalarNode):
                self.problems.append(Problem("a key must be a word", self.where(key_node)))
            elif self.scalar(key_node) in found:
                self.problems.append(
                    Problem(
                        f"key {self.scalar(key_node)!r} stands twice in this mapping", self.where(key_node)
                    )
                )
            else:
                self.entry(key_node, value_node, path, parents, found)
        for merge in merges:
            self.merge(merge, path, parents, found)
        return found

    def entry(
        self,
        key_node: yaml.Node,
        value_node: yaml.Node,
        path: Path,
        parents: tuple[int, ...],
        found: dict[Any, Any],
    ) -> None:
        here = (*path, self.scalar(key_node))
        self.keys[here] = self.where(key_node)
        found[here[-1]] = self.convert(value_node, here, parents)

    def merge(self, node: yaml.Node, path: Path, parents: tuple[int, ...], found: dict[Any, Any]) -> None:
        """`<<: *base` or a list of them: keys that are not there yet."""
        for base in node.value if isinstance(node, yaml.SequenceNode) else [node]:
            self.budget -= 1
            if not isinstance(base, yaml.MappingNode) or id(base) in parents or self.budget < 0:
                self.problems.append(Problem("'<<' takes a mapping, or a list of mappings", self.where(base)))
                continue
            for key_node, value_node in base.value:
                if key_node.tag == "tag:yaml.org,2002:merge":
                    self.merge(value_node, path, (*parents, id(base)), found)
                elif isinstance(key_node, yaml.ScalarNode) and self.scalar(key_node) not in found:
                    self.entry(key_node, value_node, path, (*parents, id(base)), found)


def scalar(node: yaml.Node) -> Any:
    """A scalar by YAML 1.2's core rules: null, true, false, decimal numbers; the rest is text."""
    text: str = node.value
    if getattr(node, "style", None) or node.tag == "tag:yaml.org,2002:str":  # quoted, a block, `!!str 3`
        return text
    if text in ("", "~", "null", "Null", "NULL"):
        return None
    if text in ("true", "True", "TRUE"):
        return True
    if text in ("false", "False", "FALSE"):
        return False
    number = int(text) if _INT.fullmatch(text) else float(text) if _FLOAT.fullmatch(text) else text
    return number if str(number) == text else text  # a variable's 0022 and 3.10 stay as they are written


def request_yaml(request: ProfileRequest) -> str:
    """A request as a YAML file that reads back as itself."""

    class Dumper(yaml.SafeDumper):
        pass

    def text(dumper: yaml.SafeDumper, value: str) -> yaml.ScalarNode:
        # Quoted wherever YAML 1.1 or 1.2 would read something else: 3:5 is 185 in the one, text in the other.
        style = (
            None if re.fullmatch(r"[A-Za-z_][A-Za-z0-9_./-]*", value) and value.lower() not in _WORDS else "'"
        )
        return dumper.represent_scalar("tag:yaml.org,2002:str", value, style=style)

    def inline(dumper: yaml.SafeDumper, value: list[Any]) -> yaml.SequenceNode:
        simple = not any(isinstance(item, dict) for item in value)
        return dumper.represent_sequence("tag:yaml.org,2002:seq", value, flow_style=simple)

    Dumper.add_representer(str, text)
    Dumper.add_representer(list, inline)
    dumped: str = yaml.dump(
        request.to_dict(), Dumper=Dumper, sort_keys=False, width=10_000, allow_unicode=True
    )
    return dumped
