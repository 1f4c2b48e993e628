"""Values that are known to be secret, and the forms in which a log shows them."""

from __future__ import annotations

import base64
import functools
import html
import json
import os
import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from urllib.parse import quote, quote_plus

from rlprof_ops import env_names
from rlprof_ops.redact.secret_names import MASK, is_plain, is_secret_name, may_hold_a_login
from rlprof_ops.redact.shapes import LOGIN, SHAPES, is_login

_SHORTEST = 6
_SHORTEST_ENCODED = 8  # bytes; what a shorter value becomes in base64 can stand anywhere by chance
_LEAST_PIECE = 4  # characters of a value at the end of one line whose rest begins the next
_MOST_TOKEN_BYTES = 4096


def holds_secret(name: str, value: str) -> bool:
    """Whether a variable's value is a secret: by its name, or by the value's own shape."""
    if not value or value.strip() in ("", MASK):
        return False
    if may_hold_a_login(name):
        return bool(LOGIN.search(value)) or (is_secret_name(name) and "://" not in value)
    if is_secret_name(name):
        return not is_plain(value, name)
    return any(shape.pattern.fullmatch(value.strip()) for shape in SHAPES)


def secret_values(env: Mapping[str, str]) -> frozenset[str]:
    """The secrets in an environment, long enough not to hit by chance; of an address its login alone."""
    found: set[str] = set()
    for name, value in env.items():
        if not holds_secret(name, value):
            continue
        login = LOGIN.search(value)
        secret = login["login"].rpartition(":")[2] if login and is_login(login["login"]) else value
        if len(secret) >= _SHORTEST:
            found.add(secret)
    return frozenset(found)


def own_secrets() -> frozenset[str]:
    """The secrets in this process's environment, and the token of the job's Ray that a file of its own
    holds.
    """
    try:
        with open(os.environ.get(env_names.RAY_TOKEN_PATH, ""), encoding="utf-8") as stream:
            token = stream.read(_MOST_TOKEN_BYTES).strip()
    except (OSError, ValueError):
        token = ""
    return secret_values(os.environ) | ({token} if len(token) >= _SHORTEST else frozenset())


@dataclass(frozen=True)
class Known:
    """Forms of known values: `plain` as they are escaped, `encoded` in base64 or as hexadecimal digits, where
    letters on both sides belong to the same secret.
    """

    plain: tuple[str, ...] = ()
    encoded: tuple[str, ...] = ()

    @functools.cached_property
    def forms(self) -> tuple[str, ...]:
        return (*self.plain, *self.encoded)

    @functools.cached_property
    def halves(self) -> tuple[str, ...]:
        """Of which one stands whole in each line that holds a form, broken over two lines or not."""
        return tuple({half for form in self.forms for half in _halves(form)})

    def spans(self, text: str, start: int, end: int) -> Iterator[tuple[int, int]]:
        """Where forms stand in one line, and where one continues on the next or begins on the one before."""
        line = text[start:end]
        if not any(half in line for half in self.halves):
            return
        for form in self.forms:
            at = text.find(form, start, end)
            while at >= 0:
                stop = at + len(form)
                yield _around(text, at, stop) if form in self._encoded else (at, stop)
                at = text.find(form, stop, end)
        for form in self.forms:
            first, last = _halves(form)
            if first != form and (text.find(first, start, end) >= 0 or text.find(last, start, end) >= 0):
                yield from _broken(text, start, end, form)

    @functools.cached_property
    def _encoded(self) -> frozenset[str]:
        return frozenset(self.encoded)


@functools.lru_cache(maxsize=8)
def known(values: frozenset[str], *, as_bytes: bool = False) -> Known:
    """The forms of `values`; `as_bytes` for a text in which each character stands for a byte."""
    plain: set[str] = set()
    encoded: set[str] = set()
    for value in values:
        plain |= set(_escaped(value))
        data = value.encode("utf-8", "surrogateescape")
        if len(data) >= _SHORTEST_ENCODED:
            encoded |= set(_encoded(data))
    if as_bytes:
        plain = {form.encode("utf-8", "surrogateescape").decode("latin-1") for form in plain}
    return Known(*(tuple(sorted(forms, key=len, reverse=True)) for forms in (plain, encoded - plain)))


def _escaped(value: str) -> Iterator[str]:
    yield value
    in_json = json.dumps(value)[1:-1]
    yield from (in_json, json.dumps(in_json)[1:-1], json.dumps(value, ensure_ascii=False)[1:-1])
    yield repr(value)[1:-1]
    yield repr(value.encode("utf-8", "surrogateescape"))[2:-1]
    data = value.encode("utf-8", "surrogateescape")
    for url in (quote(data, safe=""), quote(data), quote_plus(data)):
        yield url
        yield re.sub("%[0-9A-F]{2}", lambda match: match[0].lower(), url)
    yield html.escape(value)
    yield shlex.quote(value).removeprefix("'").removesuffix("'")
    yield value.replace("'", r"'\''")  # sh
    yield re.sub(r"([^\w@%+=:./-])", r"\\\1", value)  # bash: printf %q
    yield re.sub(r"([\"$`\\])", r"\\\1", value)  # in double quotes of a shell


def _encoded(data: bytes) -> Iterator[str]:
    yield from (data.hex(), data.hex().upper())
    yield "".join(f"\\x{byte:02x}" for byte in data)
    for shift in range(3):
        # Of the characters at both ends some bits belong to what stands beside the value.
        whole = slice((shift * 8 + 5) // 6, (shift + len(data)) * 8 // 6)
        form = base64.b64encode(bytes(shift) + data).decode()[whole]
        yield from (form, form.replace("+", "-").replace("/", "_"))


def _halves(form: str) -> tuple[str, str]:
    middle = len(form) // 2
    return (form[:middle], form[middle:]) if middle >= _LEAST_PIECE else (form, form)


_BASE64 = re.compile(r"[A-Za-z0-9+/_-]*=*")


def _around(text: str, start: int, end: int) -> tuple[int, int]:
    """The same, with the letters of base64 on both sides, up to a line of them."""
    before = _BASE64.match(text[max(0, start - 80) : start][::-1])
    after = _BASE64.match(text[end : end + 400])
    return start - (before.end() if before else 0), end + (after.end() if after else 0)


# What a line that is broken may end and begin with around the break.
_MOST_LINE = 4096
_BREAK_BEFORE = "\\\"' \t\r"
_BREAK_AFTER = re.compile(r"\s*(?:\([^)\n]{1,80}\))?[\s\"'|>+]*")


def _broken(text: str, start: int, end: int, form: str) -> Iterator[tuple[int, int]]:
    """Pieces of a form that ends one line and goes on in the next; the end of a line that is half of one is a
    piece as well, whose rest may not have arrived.
    """
    half = len(form) // 2
    stripped = start + len(text[start:end].rstrip(_BREAK_BEFORE))
    for count in range(min(len(form) - 1, stripped - start), 0, -1):
        if text.startswith(form[:count], stripped - count):
            rest = _rest(text, end, form[count:])
            if rest is not None or count >= max(half, _LEAST_PIECE * 2):
                yield stripped - count, stripped
                yield from (rest,) if rest else ()
                break
    begin = _BREAK_AFTER.match(text, start, end)
    if not start or begin is None:
        return
    earlier = text[max(0, start - _MOST_LINE) : start].rstrip(_BREAK_BEFORE + "\n")
    stripped = max(0, start - _MOST_LINE) + len(earlier)
    before = stripped - len(earlier) + earlier.rfind("\n") + 1
    for count in range(min(len(form) - 1, stripped - before), 0, -1):
        if text.startswith(form[:count], stripped - count) and text.startswith(form[count:], begin.end()):
            yield stripped - count, stripped
            yield begin.end(), begin.end() + len(form) - count
            break


def _rest(text: str, end: int, rest: str) -> tuple[int, int] | None:
    begin = _BREAK_AFTER.match(text, end)
    if begin is not None and begin.end() > end and text.startswith(rest, begin.end()):
        return begin.end(), begin.end() + len(rest)
    return None
