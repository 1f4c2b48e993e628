"""Hydra overrides and YAML fragments, written and read: values keep their type through bash and through
Hydra's grammar.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from rlprof_ops.request.problems import Problem, RequestError, shown
from rlprof_ops.trainers.shell_text import looks_like_script, read_script

_PLAIN = re.compile(r"[A-Za-z_][A-Za-z0-9_./-]*", re.ASCII)
_KEYWORDS = ("null", "true", "false", "nan", "inf", "yes", "no", "on", "off", "y", "n")
_REFERENCE = re.compile(r"(\\*)\$\{")
"""Where OmegaConf reads an interpolation, unless the number of backslashes is odd: then it is text."""
_OVERRIDE = re.compile(
    r"(?P<mark>\+\+|\+|~)?(?P<key>[A-Za-z_][\w./@-]*)(?:=(?P<value>.*))?", re.ASCII | re.DOTALL
)


@dataclass(frozen=True)
class Setting:
    """One key of a configuration. `new`: the trainer's own configuration may not hold it yet (`++` in
    Hydra).
    """

    path: tuple[str, ...]
    value: Any
    new: bool = False


class Interpolation(str):
    """`${…}` that the trainer is meant to compute, where other text is written so that it stays text."""


def to_hydra(settings: Iterable[Setting]) -> str:
    """Lines to paste after the trainer's command, quoted for bash, each but the last continued."""
    overrides = [
        shell_word(("++" if s.new else "") + ".".join(s.path) + "=" + hydra_value(s.value, top=True))
        for s in settings
    ]
    return " \\\n".join(overrides) + "\n" if overrides else ""


def shell_word(word: str) -> str:
    """One word for bash; text with single quotes goes into double quotes where that is safe, to stay
    readable.
    """
    if "'" in word and not re.search(r'["$`\\!]', word):
        return f'"{word}"'
    return shlex.quote(word)


def hydra_value(value: Any, top: bool = False) -> str:
    """A value in Hydra's override grammar (hydra.cc, "Basic Override syntax"); text that could be read
    otherwise is quoted.
    """
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "True" if value else "False"
    if isinstance(value, int):
        return str(value)
    if isinstance(value, (list, tuple)):
        return "[" + ",".join(hydra_value(item) for item in value) + "]"
    if isinstance(value, Mapping):
        return "{" + ",".join(f"{key}:{hydra_value(item)}" for key, item in value.items()) + "}"
    text = _as_text(value)
    if _PLAIN.fullmatch(text.replace(":", "") if top else text) and text.lower() not in _KEYWORDS:
        return text
    # Inside quotes only quotes, and backslashes before them or at the end, are escaped.
    return "'" + re.sub(r"(\\*)('|$)", lambda m: m[1] * 2 + ("\\'" if m[2] else ""), text) + "'"


def _as_text(value: Any) -> str:
    r"""`${` as OmegaConf takes it for text, `\${`: an interpolation of nothing ends the trainer."""
    if isinstance(value, Interpolation):
        return value
    return _REFERENCE.sub(lambda found: found[1] * 2 + r"\${", str(value))


def unescaped(value: Any) -> Any:
    """What OmegaConf makes of `_as_text`, in all strings of nested data."""
    if isinstance(value, Mapping):
        return {key: unescaped(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [unescaped(inner) for inner in value]
    if not isinstance(value, str):
        return value
    return _REFERENCE.sub(lambda found: found[1][: len(found[1]) // 2] + "${", value)


def to_yaml(settings: Iterable[Setting]) -> str:
    """The same settings as a YAML fragment."""
    import yaml

    class PlainDumper(yaml.SafeDumper):
        def ignore_aliases(self, data: Any) -> bool:
            return True

    def text(dumper: yaml.SafeDumper, value: str) -> yaml.ScalarNode:
        plain = _PLAIN.fullmatch(value) and value.lower() not in _KEYWORDS
        style = None if plain else "'"
        return dumper.represent_scalar("tag:yaml.org,2002:str", _as_text(value), style=style)

    PlainDumper.add_representer(str, text)
    PlainDumper.add_representer(Interpolation, text)
    tree: dict[str, Any] = {}
    for setting in settings:
        _put(tree, setting.path, setting.value)
    if not tree:
        return ""
    dumped: str = yaml.dump(
        tree,
        Dumper=PlainDumper,
        sort_keys=False,
        default_flow_style=None,
        width=10_000,
        allow_unicode=True,
    )
    # `default_flow_style=None` writes every mapping of scalars inline; only lists should be.
    return (
        dumped
        if "{" not in dumped
        else yaml.dump(tree, Dumper=_block(PlainDumper), sort_keys=False, width=10_000, allow_unicode=True)
    )


def _block(base: Any) -> Any:
    """A dumper whose mappings are blocks and whose lists are inline."""

    class BlockDumper(base):  # type: ignore[misc]
        pass

    def mapping(dumper: Any, data: dict[str, Any]) -> Any:
        return dumper.represent_mapping("tag:yaml.org,2002:map", data.items(), flow_style=not data)

    def sequence(dumper: Any, data: Iterable[Any]) -> Any:
        return dumper.represent_sequence("tag:yaml.org,2002:seq", data, flow_style=True)

    BlockDumper.add_representer(dict, mapping)
    BlockDumper.add_representer(list, sequence)
    BlockDumper.add_representer(tuple, sequence)
    return BlockDumper


def read_settings(text: str, name: str) -> dict[str, Any]:
    """A trainer's configuration as nested data: a YAML document, Hydra overrides, or a launch script with
    some.

    Raises:
        RequestError: neither of both.
    """
    if looks_like_script(text) or _looks_like_overrides(text):
        return read_overrides(text, name)
    from rlprof_ops.request.yaml_file import parse_yaml

    data, _, _ = parse_yaml(text, name, _scalar)
    if data is None:
        return {}
    if not isinstance(data, dict):
        raise RequestError(
            [Problem(f"a trainer's configuration is a mapping or Hydra overrides, not {shown(data)}", name)]
        )
    return data


def _scalar(node: Any) -> Any:
    """As OmegaConf reads it, by YAML 1.1: `yes` is true, 0x10 is 16."""
    from yaml.constructor import SafeConstructor

    from rlprof_ops.request.yaml_file import scalar

    if not node.style and node.tag.endswith((":bool", ":int")):
        with suppress(ValueError, KeyError):  # `!!int x`
            return SafeConstructor().construct_object(node)
    return scalar(node)


def _looks_like_overrides(text: str) -> bool:
    for line in text.splitlines():
        line = line.strip()
        if line and not line.startswith("#"):
            return (
                re.match(r"""["']?(\+\+|\+|~)?[A-Za-z_][\w./@-]*=|["']?~""", line) is not None
                or "=" in line.split(":")[0]
            )
    return False


def read_overrides(text: str, name: str) -> dict[str, Any]:
    """Hydra overrides as nested data, out of words, lines, or a whole launch script; other words are skipped.

    Raises:
        RequestError: a quote is not closed, or a value is none of Hydra's.
    """
    tree: dict[str, Any] = {}
    script = looks_like_script(text)
    for token in read_script(text, name).words:
        match = _OVERRIDE.fullmatch(token)
        if not match or (match["value"] is None and match["mark"] != "~"):
            continue
        if re.search("[/@]", match["key"]):  # chooses a file of a group, whatever else is said of its keys
            continue
        path = tuple(match["key"].split("."))
        if match["mark"] == "~":
            _put(tree, path, None)
            continue
        try:
            _put(tree, path, parse_value(match["value"], name))
        except RequestError:
            if not script:  # in a script a word with `=` may be anything
                raise
    return tree


def _put(tree: dict[str, Any], path: tuple[str, ...], value: Any) -> None:
    """Set a key as Hydra does: a mapping is merged into the one that is there."""
    for key in path[:-1]:
        inner = tree.get(key)
        if not isinstance(inner, dict):
            inner = tree[key] = {}
        tree = inner
    last = path[-1]
    if isinstance(value, Mapping) and isinstance(tree.get(last), dict):
        for key, inner in value.items():
            _put(tree[last], (key,), inner)
    else:
        tree[last] = value


def parse_value(text: str, name: str = "") -> Any:
    """One value of Hydra's grammar: null, booleans, numbers, lists, dicts, quoted and plain text.

    Raises:
        RequestError: unbalanced quotes or brackets.
    """
    parser = _Values(text)
    try:
        value = parser.value(top=True)
        if parser.at < len(text):
            raise ValueError(f"{text[parser.at]!r} is left over at character {parser.at + 1}")
    except (ValueError, RecursionError) as error:
        raise RequestError([Problem(f"{shown(text)} is not a Hydra value: {error}", name)]) from None
    return value


class _Values:
    """A recursive-descent reader of Hydra values, without Hydra."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0

    def peek(self) -> str:
        return self.text[self.at : self.at + 1]

    def skip(self) -> None:
        while self.peek().isspace():
            self.at += 1

    def value(self, top: bool = False) -> Any:
        self.skip()
        if self.peek() == "[":
            return self.items("]")
        if self.peek() == "{":
            pairs = self.items("}", pair=True)
            return {str(key): value for key, value in pairs}
        if self.peek() and self.peek() in "'\"":
            return self.quoted(self.peek())
        stop = "" if top else ",]}"
        start = self.at
        while self.peek() and self.peek() not in stop:
            self.at += 2 if self.peek() == "\\" else 1
        return plain(re.sub(r"\\([\\()\[\]{}:=,\s])", r"\1", self.text[start : self.at].strip()))

    def items(self, close: str, pair: bool = False) -> list[Any]:
        self.at += 1
        found: list[Any] = []
        while True:
            self.skip()
            if self.peek() == close:
                self.at += 1
                self.skip()
                return found
            if not self.peek():
                raise ValueError(f"{close!r} is missing")
            if found:
                if self.peek() != ",":
                    raise ValueError(f"',' or {close!r} is missing")
                self.at += 1
                self.skip()
            found.append(self.pair() if pair else self.value())

    def pair(self) -> tuple[Any, Any]:
        start = self.at
        if self.peek() and self.peek() in "'\"":
            key: Any = self.quoted(self.peek())
            self.skip()
        else:
            while self.peek() and self.peek() not in ":,}":
                self.at += 1
            key = self.text[start : self.at].strip()
        if self.peek() != ":":
            raise ValueError("':' is missing")
        self.at += 1
        return key, self.value()

    def quoted(self, quote: str) -> str:
        self.at += 1
        out = ""
        while self.peek() != quote:
            if not self.peek():
                raise ValueError("the closing quote is missing")
            run = re.match(rf"(\\+)({quote})", self.text[self.at :])
            if run:  # 2n backslashes and a quote: n backslashes, the end; 2n+1: n backslashes and the quote
                out += "\\" * (len(run[1]) // 2)
                self.at += len(run[1])
                if len(run[1]) % 2:
                    out += quote
                    self.at += 1
                continue
            out += self.peek()
            self.at += 1
        self.at += 1
        self.skip()
        return out


def plain(text: str) -> Any:
    """An unquoted word as Hydra types it."""
    if text.lower() in ("null", ""):
        return None if text else ""
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    if re.fullmatch(r"[+-]?(0|[1-9](_?[0-9]){0,17})", text, re.ASCII):
        return int(text)
    if re.fullmatch(r"[+-]?([0-9]+\.[0-9]*|\.[0-9]+|[0-9]+(?=[eE]))([eE][+-]?[0-9]+)?", text, re.ASCII):
        return float(text)
    return text


def dig(tree: Mapping[str, Any], *path: str) -> Any:
    """The value at a path of nested mappings; None when there is none."""
    found: Any = tree
    for key in path:
        if not isinstance(found, Mapping):
            return None
        found = found.get(key)
    return found


def is_interpolation(value: Any) -> bool:
    """`${…}`: a default that the trainer computes; without the whole configuration it counts as not set."""
    return isinstance(value, str) and any(len(run[1]) % 2 == 0 for run in _REFERENCE.finditer(value))


def without_computed(
    settings: Mapping[str, Any], where: str, trainer: str, notes: list[str]
) -> dict[str, Any]:
    """Settings that stand there; each that the trainer computes counts as not set, and is noted."""
    computed = {name: value for name, value in settings.items() if is_interpolation(value)}
    for name, value in computed.items():
        note = f"{where}.{name} {shown(value)} is computed by {trainer}, and counts as not set here"
        notes += [note] if note not in notes else []
    return {name: value for name, value in settings.items() if name not in computed}
