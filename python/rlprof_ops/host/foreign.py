"""Files and JSON that somebody else may have written: plain files alone, bounded in size and depth, and of
the types that are meant.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import functools
import json
import math
import os
import re
import stat
import types
import typing
from collections.abc import Callable, Iterator, Mapping
from typing import Any, BinaryIO, TypeVar

MOST_BYTES = 256 << 20
# The line that names an exception stands at a traceback's end; libraries print more after it.
EXCEPTION = re.compile(
    r"^(?:\(\w+ pid=\d+\) |\[rank\d+\]: )?[\w.]*(?:Error|Exception|Interrupt|Exit|Timeout)\b"
)
LOGGED_ERROR = re.compile(r"^\S+ \S+\s+(?:ERROR|CRITICAL)\s.* -- ")  # as Ray's logger writes one
_COLOUR = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_MOST_WHOLE = 1 << 63  # as far as columns and clocks go
_Path = str | os.PathLike[str]
_Kind = TypeVar("_Kind")
_Check = Callable[[Any, str], Any]


def open_plain(path: _Path, flags: int = 0) -> BinaryIO:
    """A file to read. Raises OSError, also for what is no plain file: opening a FIFO would wait for its
    writer.
    """
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | flags)
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise OSError(errno.EINVAL, "it is no plain file", os.fspath(path))
    return os.fdopen(fd, "rb")


def read_bytes(path: _Path, most_bytes: int = MOST_BYTES) -> bytes:
    """The content of a plain file. Raises OSError; ValueError for more than `most_bytes`."""
    return bounded(open_plain(path), most_bytes)


def bounded(opened: BinaryIO, most_bytes: int = MOST_BYTES) -> bytes:
    """The same of an open one, which is closed: a gigabyte is not read to find that it is too much.

    Raises OSError; ValueError for more than `most_bytes`.
    """
    with opened as file:
        size = os.fstat(file.fileno()).st_size
        raw = b"" if size > most_bytes else file.read(most_bytes + 1)
    if size > most_bytes or len(raw) > most_bytes:
        raise ValueError(f"it is larger than {most_bytes} bytes")
    return raw


def tail(path: _Path, most_bytes: int = 1 << 16) -> str:
    """The end of a log, without colours; empty where there is none or it cannot be read."""
    with contextlib.suppress(OSError), open_plain(path) as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - most_bytes))
        return _COLOUR.sub("", file.read(most_bytes).decode(errors="replace"))
    return ""


def in_one_line(said: str) -> str:
    """Of a message that quotes a log: its first line, and the line of the log that says most, the last one
    that names an exception, else the first that Ray logged as an error, else the last."""
    first, *quoted = [line.strip() for line in said.splitlines() if line.strip()] or [""]
    errors = [line for line in quoted if LOGGED_ERROR.match(line)][:1]
    named = [line for line in quoted if EXCEPTION.match(line)] or errors or quoted
    return " ".join([first, *named[-1:]])


def parse(raw: bytes | str) -> Any:
    """What JSON says. Raises ValueError for everything that is none, or nested too deeply to be read."""
    try:
        return json.loads(raw)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    except MemoryError:
        raise ValueError("it is too large for this machine's memory") from None


def read(path: _Path, most_bytes: int = MOST_BYTES) -> Any:
    """The JSON of a plain file. Raises OSError; ValueError for no JSON and for more than `most_bytes`."""
    return parse(read_bytes(path, most_bytes))


def read_object(path: _Path, most_bytes: int = MOST_BYTES) -> dict[str, Any]:
    """The JSON object of a plain file; {} where there is none."""
    with contextlib.suppress(OSError, ValueError):
        return an_object(read(path, most_bytes))
    return {}


def rows(raw: bytes) -> Iterator[dict[str, Any]]:
    """The lines of a log that are JSON objects; the others are left out."""
    for line in raw.split(b"\n"):
        with contextlib.suppress(ValueError):
            row = parse(line)
            if isinstance(row, dict):
                yield row


def read_rows(path: _Path, most_bytes: int = 64 << 20) -> list[dict[str, Any]]:
    """The same of a plain file, up to `most_bytes`; none where it cannot be read."""
    with contextlib.suppress(OSError), open_plain(path) as file:
        return list(rows(file.read(most_bytes)))
    return []


def reason_of(error: BaseException) -> str:
    """A fault in a few words: what the operating system says, else the message."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return str(error) or type(error).__name__


def an_object(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def a_list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def text(value: Any) -> str:
    return value if isinstance(value, str) else ""


def whole(value: Any) -> int | None:
    """A whole number of at most 64 bits."""
    fits = isinstance(value, int) and not isinstance(value, bool) and -_MOST_WHOLE <= value < _MOST_WHOLE
    return value if fits else None


def typed(value: Any, kind: Callable[..., _Kind]) -> _Kind:
    """JSON as the type that `kind` says: a dataclass or a TypedDict, with what stands in their annotations.

    Unknown keys of an object are left out, missing ones take their default. Raises ValueError, which names
    the place in the JSON.
    """
    found: _Kind = _check(kind)(value, "")
    return found


@functools.cache
def _check(kind: Any) -> _Check:
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if kind is Any:
        return lambda value, _: value
    if dataclasses.is_dataclass(kind) or typing.is_typeddict(kind):
        return _object_check(kind)
    if origin in (typing.Union, types.UnionType):
        (other,) = (_check(each) for each in inner if each is not type(None))
        return lambda value, place: None if value is None else other(value, place)
    if origin in (list, tuple) and (origin is list or inner[1:] == (Ellipsis,)):
        return _array_check(_check(inner[0]), origin)
    if origin is tuple:
        return _row_check([_check(each) for each in inner])
    if origin in (dict, Mapping):
        return _mapping_check(_check(inner[1]))
    if hasattr(kind, "_fields"):  # a NamedTuple, which JSON has as a list
        row = _row_check([_check(hint) for hint in typing.get_type_hints(kind).values()])
        return lambda value, place: kind(*row(value, place))
    return _scalar_check(kind)


def _wrong(value: Any, place: str, wanted: str) -> ValueError:
    return ValueError(f"{place.lstrip('.') or 'the whole'} is {json.dumps(value)[:40]}, not {wanted}")


def _object_check(kind: Any) -> _Check:
    hints = typing.get_type_hints(kind)
    if typing.is_typeddict(kind):
        required, checks = set(hints), {name: _check(hint) for name, hint in hints.items()}
    else:
        required = {
            each.name
            for each in dataclasses.fields(kind)
            if each.default is each.default_factory is dataclasses.MISSING
        }
        checks = {each.name: _check(hints[each.name]) for each in dataclasses.fields(kind)}

    def check(value: Any, place: str) -> Any:
        if not isinstance(value, dict):
            raise _wrong(value, place, "an object")
        if missing := required - value.keys():
            raise ValueError(f"{place.lstrip('.') or 'the whole'} lacks {min(missing)!r}")
        return kind(
            **{name: one(value[name], f"{place}.{name}") for name, one in checks.items() if name in value}
        )

    return check


def _array_check(inner: _Check, made: Callable[[Iterator[Any]], Any]) -> _Check:
    def check(value: Any, place: str) -> Any:
        if not isinstance(value, list):
            raise _wrong(value, place, "a list")
        return made(inner(each, f"{place}[{index}]") for index, each in enumerate(value))

    return check


def _row_check(inner: list[_Check]) -> _Check:
    def check(value: Any, place: str) -> Any:
        if not isinstance(value, list) or len(value) != len(inner):
            raise _wrong(value, place, f"a list of {len(inner)}")
        return tuple(
            one(each, f"{place}[{index}]") for index, (one, each) in enumerate(zip(inner, value, strict=True))
        )

    return check


def _mapping_check(inner: _Check) -> _Check:
    def check(value: Any, place: str) -> Any:
        if not isinstance(value, dict):
            raise _wrong(value, place, "an object")
        return {name: inner(each, f"{place}.{name}") for name, each in value.items()}

    return check


def _scalar_check(kind: Any) -> _Check:
    word = {bool: "true or false", int: "a whole number", float: "a number", str: "text"}[kind]

    def fits(value: Any) -> bool:
        if kind is float:
            return whole(value) is not None or (isinstance(value, float) and math.isfinite(value))
        return whole(value) is not None if kind is int else isinstance(value, kind)

    def check(value: Any, place: str) -> Any:
        if not fits(value):
            raise _wrong(value, place, word)
        return value

    return check
