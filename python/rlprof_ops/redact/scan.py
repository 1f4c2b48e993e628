"""Finds where secrets stand in a text, line by line; what begins in a line may go on in those after it."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping

from rlprof_ops.redact.known import Known, known, own_secrets, secret_values
from rlprof_ops.redact.secret_names import HINTS, MASK, is_plain, is_secret_name, may_hold_a_login
from rlprof_ops.redact.shapes import KEY_BEGIN, KEY_END, KEY_HINT, LOGIN, MOST_KEY, SHAPES, Shape, is_login

Span = tuple[int, int]

_COLOR = r"(?:[ ]{0,8}\x1b\[[0-9;]{0,12}m)*"
_NAME = r"[A-Za-z_][A-Za-z0-9_.]{0,100}(?:-[A-Za-z0-9_.]{1,50}){0,8}"
_CALL = r"(?P<call>[A-Za-z_][\w.]{0,40})\("
# A name is taken whole (a group of a lookahead gives nothing back), then one of what leads to its value.
_ASSIGNED = (
    rf"(?=(?P<name>{_NAME}))(?P=name)(?P<quote>\\*[\"'])?{_COLOR}(?:"
    # NAME=value, "name": value, environ["NAME"] = value, name%3Dvalue
    r"(?P<assigned>(?:\s?\]|\[\d*\]|%22)?\s{0,8}(?:=>|->|:=|[=:](?!:)|%3[ADad])(?:%22|%20)?)"
    rf"{_COLOR}[^\S\n]{{0,8}}{_COLOR}"
    r"|(?P<pair>(?<=[\"'])\s{0,4},\s{0,4})(?=[rbfu]?\\*[\"'])"  # ("NAME", "value")
    r"|\s(?:is|was):?\s(?=\S{0,80}\d)(?=\S{8})"
    r"|(?:\s[^<>\n]{0,80})?>(?=[^<>\n]{1,2000}</)"  # <name>value</name>
    r"|(?P<table>[^\S\n|]{0,40}[\s|\x80-\xff\u2502\u2503]{1,8}"  # NAME   value
    r"(?=[^\s/]{0,80}\d)(?=[^\s/|-]\S{7}))"
    r")"
)
# A name begins where a word does; in a line with escapes, colors or percent signs behind those too.
_NAMED = re.compile(r"(?<![A-Za-z0-9_])" + _ASSIGNED)
_ESCAPES = re.compile(r"[\\\x1b%]")
_NAMED_BEHIND_ESCAPES = re.compile(
    r"(?:(?<![A-Za-z0-9_\\])(?<!\x1b\[)|(?<=\\)(?![nrt])|(?<=\\[nrt])|(?<=%[0-9A-Fa-f]{2})"
    r"|(?<=\x1b\[m)|(?<=\[[0-9]m)|(?<=[0-9;][0-9]m))" + _ASSIGNED
)
_OPTION = re.compile(rf"-(?<![^\s'\"\[,(]-)-?(?P<name>{_NAME})[\"']?,?\s{{1,8}}(?=[^-\s])")
# A command that takes a setting's name and its value as two words.
_SET = re.compile(
    r"\b(?:set|setenv|putenv|setx|config|env|ENV|ARG|add)\s+(?:--?\w+\s+|set\s+){0,3}"
    rf"(?P<name>(?://[\w./-]+:)?{_NAME})[ \t]+(?=\S{{6}})"
)
# {"name": "HF_TOKEN", "value": "…"}, also on two lines.
_ENTRY = re.compile(
    rf"\b(?i:name|key)(?:\\*[\"'])?\s*[:=]\s*(?:\\*[\"'])?(?P<name>{_NAME})(?:\\*[\"'])?[\s,;]{{1,40}}"
    r"(?:\([^)\n]{1,80}\)\s+)?(?:\\*[\"'])?(?i:value|val)(?:\\*[\"'])?\s*[:=]\s*"
)
_ENTRY_VALUE = re.compile("val", re.IGNORECASE)
_QUOTED = r"'(?:\\.|[^'\\\n])*'|\"(?:\\.|[^\"\\\n])*\"|\$'(?:\\.|[^'\\\n])*'"
_ESCAPED = r"(?P<bar>\\{1,64}[\"'])(?:(?!(?P=bar))[^\n])*(?P=bar)"
_VALUE = re.compile(
    rf"(?:{_CALL})?[rbfuRBFU@]{{0,2}}(?P<value>(?:{_QUOTED}|{_ESCAPED})"
    rf"(?:{_QUOTED}|\\{{1,64}}[\"'][^\"'\\\n]*\\{{1,64}}[\"']|[^\s;&|'\"\\,)}}\]<]|\\[^nrt\"'\n])*)"
    r"|(?P<cut>\\*[\"'][^\s]*)"  # a quotation that does not end here
    rf"|(?P<bare>(?:[^\s;&|'\"\\,)}}\]<]+|\\[^nrt\"'\n]|(?<=[^\s\"'\\=:,])(?:{_QUOTED}))+)"
)
# In an environment's own listing a value ends with its word.
_WORD = re.compile(r"[^\s;&|'\"\\]+")
# A quotation that does not end is taken as far as it goes.
_ITEM = re.compile(rf"{_QUOTED}|{_ESCAPED}|(?<=[\s\[,:])[^\s\[\]{{}},:'\"\\]+|\\{{0,64}}[\"'][^\n]*")
_PAIR = re.compile(rf"[:=]\s*(?P<item>{_QUOTED}|[^\s\[\]{{}},'\"]+|[\"'][^\n]*)")
_MOST_SHOWN = 1024  # characters of a value that may be shown because of how it begins
_REFERENCE = re.compile(r"(?:os|self|args|cfg|config|settings|env|ctx|kwargs|request|getpass)\.[A-Za-z_]")
_READS = ("getenv", "get", "pop", "input", "getpass", "len", "bool", "type", "isinstance")
_ESCAPE = re.compile(r"(?<!\\)\\+(n|r|t|x1b|u001b|033|u250[23])")
_STANDS_FOR = {"n": "\n", "r": "\n", "t": "\t", "x": "\x1b", "0": "\x1b", "u": "\x1b"}
# What stands before each line of a worker's output.
_LEAD = r"(?:\x1b\[[0-9;]{0,12}m){0,8}(?:\([\w.:]{1,80} [^)\n]{1,80}\))?(?:\x1b\[[0-9;]{0,12}m){0,8} ?"
_INDENT = re.compile(rf"{_LEAD}(?P<indent>[ \t]*)(?P<dash>-[ \t]+)?")
_BLOCK = re.compile(r"(?:[|>][+-]?\d?[+-]?|\[)?[ \t]*\r?\n")
_CLOSING = " \t\r\"'\\}])"
_MOST_LINES = 64  # that one name's block or list can have
_KEY_LINE = re.compile(
    rf"\n{_LEAD}[\s>|]{{0,40}}(?:[A-Za-z0-9+/=]{{1,200}}|[A-Z][A-Za-z-]{{2,20}}: [^\n]{{1,100}}|)"
    rf"[\\\"',\s]{{0,8}}(?=\n|\Z)"
    rf"|\n{_LEAD}[^\n]{{0,80}}?(?<![A-Za-z0-9+/])[A-Za-z0-9+/]{{40,200}}={{0,2}}[\\\"',\s]{{0,8}}(?=\n|\Z)"
)


def redact_text(text: str, env: Mapping[str, str] | None = None) -> str:
    """`text` with the secrets of `env` (default: this process's) and what looks like one as ***."""
    values = own_secrets() if env is None else secret_values(env)
    return replaced(text, spans(text, values), lambda size: MASK)


def spans(text: str, values: Collection[str] = ()) -> list[Span]:
    """Where in `text` secrets stand, in order and without overlap: `values`, known shapes, secret names."""
    forms, found, start = known(frozenset(values)), list[Span](), 0
    text = text.replace("\r", "\n")
    while start <= len(text):
        end = text.find("\n", start)
        end = len(text) if end < 0 else end
        found += line_spans(text, start, end, forms)
        start = end + 1
    return merged(found)


def line_spans(
    text: str, start: int, end: int, values: Known, shapes: Iterable[Shape] = SHAPES
) -> Iterator[Span]:
    """Secrets that stand, or begin, in the line from `start` to `end`; neither in order nor apart. `shapes`
    are all that the text may hold.
    """
    yield from values.spans(text, start, end)
    line = text[start:end].lower()
    for shape in shapes:
        if not any(hint in line for hint in shape.hints):
            continue
        for match in shape.pattern.finditer(text, start, end):
            yield match.end("keep") if "keep" in shape.pattern.groupindex else match.start(), match.end()
    for match in LOGIN.finditer(text, start, end) if "://" in line else ():
        if is_login(match["login"]):
            yield match.span("login")
    if any(hint in line for hint in HINTS):
        yield from _named(text, start, end)
    yield from _keys(text, start, end) if KEY_HINT in line else ()
    if "\\" in line and (inside := _unescaped(text[start:end])) != text[start:end]:
        at = 0
        for piece in inside.split("\n"):
            for one, two in line_spans(inside, at, at + len(piece), values, shapes):
                yield start + one, start + two
            at += len(piece) + 1


def _unescaped(line: str) -> str:
    """The lines, tabs and colors that stand escaped in a string, each as long as its escape."""
    return _ESCAPE.sub(
        lambda match: ("|" if "u25" in match[1] else _STANDS_FOR[match[1][0]]).rjust(len(match[0])), line
    )


def replaced(text: str, found: Iterable[Span], mask: Callable[[int], str]) -> str:
    parts: list[str] = []
    done = 0
    for start, end in found:
        parts += [text[done:start], mask(end - start)]
        done = end
    return "".join([*parts, text[done:]])


def merged(found: Iterable[Span]) -> list[Span]:
    together: list[Span] = []
    for start, end in sorted(found):
        if together and start < together[-1][1]:
            together[-1] = (together[-1][0], max(end, together[-1][1]))
        elif end > start:
            together.append((start, end))
    return together


def _named(text: str, start: int, end: int) -> Iterator[Span]:
    """Values of secret names in assignments, options, pairs, JSON, YAML and XML."""
    done, looked_at = start, dict[str, int]()
    named = _NAMED_BEHIND_ESCAPES if _ESCAPES.search(text, start, end) else _NAMED
    for match in named.finditer(text, start, end):
        name = match["name"]
        if match.start() < done or not is_secret_name(name):
            continue
        if match["table"] and not (name.isupper() and "_" in name.strip("_")):
            continue
        for span in _values(text, match, end, looked_at):
            yield span
            done = max(done, span[1])
    for pattern, word in ((_OPTION, "-"), (_SET, " ")):
        for match in pattern.finditer(text, start, end) if text.find(word, start, end) >= 0 else ():
            name = match["name"].rpartition(":")[2]
            if is_secret_name(name) or (pattern is _SET and any(map(is_secret_name, name.split(".")))):
                yield from _value(text, match.end(), end, match["name"], quoted=False)
    beyond = min(len(text), end + 300)
    for match in _ENTRY.finditer(text, start, beyond) if _ENTRY_VALUE.search(text, start, beyond) else ():
        if match.start() < end and is_secret_name(match["name"]):
            line = text.find("\n", match.end()) if match.end() > end else end
            yield from _value(text, match.end(), len(text) if line < 0 else line, match["name"], quoted=True)


def _values(text: str, match: re.Match[str], end: int, looked_at: dict[str, int]) -> Iterator[Span]:
    """What the name of `match` is set to. `looked_at`: how far the lists and mappings of its line have been,
    by their bracket.
    """
    at, name = match.end(), match["name"]
    if match["assigned"]:
        if (text.startswith("[", at) and not text.startswith("[\n", at)) or text.startswith("{", at):
            if at < looked_at.get(text[at], 0):
                return  # as part of the one around it
            close = text.find("]}"[text[at] == "{"], at, end)
            items = _PAIR if text[at] == "{" else _ITEM
            looked_at[text[at]] = close if close >= 0 else end
            for item in items.finditer(text, at + 1, looked_at[text[at]]):
                yield from _unquoted(*item.span("item" if items is _PAIR else 0), text)
            return
        block = _BLOCK.match(text, at)
        if block is not None and ":" in match["assigned"]:
            yield from _block(text, match.start(), block.end(), listed=text.startswith("[", at))
            return
    listing = (
        match["assigned"] == "="
        and name.isupper()
        and (match.start() == 0 or text[match.start() - 1] in " \t\n\0")
    )
    if listing and (word := _WORD.match(text, at, end)):
        value = word[0].rstrip(",)}]")
        after = text[at + len(value) : at + len(value) + 1]
        if (
            len(value) > 1
            and after not in ("'", '"')
            and not is_plain(value, name)
            and not (may_hold_a_login(name) and "://" in value)
            and value[0] not in "[{("
            and not _REFERENCE.match(value)
        ):
            yield at, at + len(value)
            return
    yield from _value(
        text, at, end, name, quoted=bool(match["quote"] or ":" in (match["assigned"] or "") or match["pair"])
    )


def _value(text: str, at: int, end: int, name: str, *, quoted: bool) -> Iterator[Span]:
    """The value that begins here, if it is a secret; `quoted`: what a machine reads keeps its quotes."""
    match = _VALUE.match(text, at, end)
    if match is None:
        return
    short = match.end() - at <= _MOST_SHOWN
    if short and match["call"] and match["call"].rpartition(".")[2] in _READS:
        return
    kind = match.lastgroup if match.lastgroup in ("bare", "cut") else "value"
    start, stop = match.span(kind)
    if kind == "cut":
        start = text.index(text[start:stop].lstrip("\\")[0], start) + 1
    value = text[start:stop]
    if is_plain(value.strip("\"'\\"), name) or (short and _REFERENCE.match(value)):
        return
    if short and may_hold_a_login(name) and "://" in value:
        return  # the login in it is found by itself
    if quoted or match["call"]:
        yield from _unquoted(start, stop, text)
    else:
        yield start, stop


def _unquoted(start: int, end: int, text: str) -> Iterator[Span]:
    """The same without the quotes around it."""
    quote = re.match(r"\\*[\"']", text[start:end])
    keep = (
        len(quote[0])
        if quote and end - start >= 2 * len(quote[0]) and text.endswith(quote[0], start, end)
        else 0
    )
    if not is_plain(text[start + keep : end - keep]):
        yield start + keep, end - keep


def _block(text: str, name: int, at: int, *, listed: bool) -> Iterator[Span]:
    """What follows a name on lines of its own: a block or a list of YAML, deeper than the name; a list of
    JSON.
    """
    line = text.rfind("\n", 0, name) + 1
    own = _INDENT.match(text, line)
    depth = len(own["indent"]) if own else 0
    for _ in range(_MOST_LINES):
        indent = _INDENT.match(text, at)
        end = text.find("\n", at)
        end = len(text) if end < 0 else end
        if indent is None or (indent.end() >= end and at >= len(text)):
            return
        content = text[indent.end() : end].strip()
        deeper = len(indent["indent"]) > depth or (indent["dash"] and len(indent["indent"]) >= depth)
        if content and (not deeper or (not listed and re.match(r"[\"']?[\w.-]+[\"']?:(?:\s|$)", content))):
            return
        if content and content[0] not in "]}":
            for item in _ITEM.finditer(text, indent.end(), end) if listed else ():
                yield from _unquoted(*item.span(), text)
            if not listed:
                yield from _unquoted(
                    indent.end(), indent.end() + len(text[indent.end() : end].rstrip(_CLOSING)), text
                )
        at = end + 1


def _keys(text: str, start: int, end: int) -> Iterator[Span]:
    """Private keys that begin in a line. Of those inside another only the last can end behind it."""
    begins, done = [match.span() for match in KEY_BEGIN.finditer(text, start, end)], start
    for (begin, at), after in zip(begins, [*(each[0] for each in begins[1:]), len(text)], strict=False):
        if begin >= done or after >= done:
            done = _key_end(text, at)
            yield begin, done


def _key_end(text: str, at: int) -> int:
    """Where a private key ends that begins before `at`; without its last line, which may not have arrived or
    been cut off, as far as lines look like a key's.
    """
    end = KEY_END.search(text, at, at + MOST_KEY) if text.find("END ", at, at + MOST_KEY) >= 0 else None
    if end is not None and KEY_BEGIN.search(text, at, end.start()) is None:
        return end.end()
    line = re.compile(r"[^\n\"']*").match(text, at)
    at = line.end() if line else at
    if text[at : at + 1] not in ("\n", ""):
        return at
    stop = at
    while stop - at < MOST_KEY and (line := _KEY_LINE.match(text, stop)) is not None and line.end() > stop:
        stop = line.end()
    return stop
