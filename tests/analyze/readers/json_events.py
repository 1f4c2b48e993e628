"""Counts the events of a trace's text, sharing no code with any reader: RFC 8259 by hand, a character after
the other, however deep.
"""

from __future__ import annotations

import re

_STRING = re.compile(r'"(?:[^"\\\x00-\x1f]|\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4}))*"')
_SCALAR = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?|true|false|null")
_SPACE = re.compile(r"[ \t\r\n]*")


def count_events(text: bytes) -> int | None:
    """Elements of the list `traceEvents` of the outermost object; None where the text is no JSON, or has no
    such list, or two.
    """
    try:
        source = text.decode()
    except UnicodeDecodeError:
        return None
    open_: list[str] = []
    keys: list[str] = []
    lists, elements, at, state = 0, 0, 0, "value"
    while True:
        found = _SPACE.match(source, at)
        at = found.end() if found else at
        if at == len(source):
            return elements if state == "end" and lists == 1 else None
        char = source[at]
        if state in ("value", "first value"):
            if char == "]" and state == "first value":
                state = "after"
                continue
            if open_ == ["{", "["] and keys == ["traceEvents"]:
                elements += 1
            if char in "{[":
                if char == "[" and open_ == ["{"] and keys == ["traceEvents"]:
                    lists += 1
                open_.append(char)
                at += 1
                state = "first key" if char == "{" else "first value"
                continue
            scalar = _STRING.match(source, at) or _SCALAR.match(source, at)
            if not scalar:
                return None
            at, state = scalar.end(), "after" if open_ else "end"
        elif state in ("key", "first key"):
            if char == "}" and state == "first key":
                state = "after"
                continue
            key = _STRING.match(source, at)
            colon = re.compile(r"[ \t\r\n]*:").match(source, key.end()) if key else None
            if not key or not colon:
                return None
            if len(open_) == 1:
                keys = [key.group()[1:-1]]
            at, state = colon.end(), "value"
        elif state == "after":
            closes = "}" if open_[-1] == "{" else "]"
            if char == closes:
                open_.pop()
                state = "after" if open_ else "end"
            elif char == ",":
                state = "key" if open_[-1] == "{" else "value"
            else:
                return None
            at += 1
        else:
            return None
