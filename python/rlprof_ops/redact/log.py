"""Masks logs of any size, piece by piece, each distinct line judged once.

Lines of a log repeat but for their numbers. So the digits are taken out, and only what is left, once each, is
searched for words of which a secret's line holds one; few lines are then looked at as they are.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Collection, Iterator

from rlprof_ops.redact.known import Known, known
from rlprof_ops.redact.scan import Span, line_spans, merged, replaced
from rlprof_ops.redact.secret_names import HINTS, is_secret_name
from rlprof_ops.redact.shapes import KEY_BEGIN, KEY_END, KEY_HINT, SHAPES

# What is looked at before and after a piece, so that a secret may stand across its ends.
CONTEXT_BYTES = 4 << 10
_DIGITS = b"0123456789"
_NO_DIGITS = str.maketrans("", "", "0123456789")
_LEAST = 3  # characters without digits by which a line is found; what has fewer is looked for as it is
_MOST_NAME, _MOST_NAMES = 1000, 100
_HINT = re.compile("|".join(HINTS), re.IGNORECASE)
_NAMES = re.compile(r"(?:\\[nrt]|[\x1bb\\]\[;*m)?([A-Za-z_][A-Za-z_.-]*)")


def _without_digits(hints: Collection[str]) -> tuple[frozenset[str], frozenset[str]]:
    """Hints for lines without digits, and those that are nothing without theirs."""
    short = {hint: hint.translate(_NO_DIGITS) for hint in hints}
    usable = {hint for hint, left in short.items() if len(left) >= _LEAST}
    return frozenset(short[hint] for hint in usable), frozenset(set(short) - usable)


_SHAPE_HINTS, _SHAPE_HINTS_AS_THEY_ARE = _without_digits(
    {KEY_HINT, *(hint for shape in SHAPES for hint in shape.hints)}
)


def redact_log(data: bytes, values: Collection[str] = (), before: bytes = b"", after: bytes = b"") -> bytes:
    """A piece of a log, secrets as asterisks of the same length, so that offsets in it stay.

    `before` and `after` are what the log holds there: a secret that is only partly in `data` is known by the
    whole.
    """
    whole = before + data + after if before or after else data
    forms = known(frozenset(values), as_bytes=True)
    found = list(_log_spans(whole.replace(b"\r", b"\n"), forms))  # a progress bar's lines
    if not found:
        return data
    masked = replaced(whole.decode("latin-1"), merged(found), lambda size: "*" * size).encode("latin-1")
    return masked[len(before) : len(before) + len(data)]


def may_hold_secret(data: bytes) -> bool:
    """Whether a piece of a log has a word that stands with secrets: of its last line more has to be known."""
    lines = set(data.translate(None, _DIGITS).split(b"\n"))
    return next(_suspicious(lines, Known()), None) is not None


def open_key_at(data: bytes) -> int:
    """Where a private key begins that does not end in `data`, a log's end before a piece; -1 for none."""
    begin = data.rfind(b"BEGIN ")
    if begin < 0:
        return -1
    text = data[max(0, begin - 8) :].decode("latin-1")
    match = KEY_BEGIN.search(text)
    if match is None or KEY_END.search(text, match.end()):
        return -1
    return max(0, begin - 8) + match.start()


def _log_spans(data: bytes, forms: Known) -> Iterator[Span]:
    reduced = data.translate(None, _DIGITS).split(b"\n")
    suspicious = set(_suspicious(set(reduced), forms))
    low = data.lower()
    direct = [hint.encode() for hint in _SHAPE_HINTS_AS_THEY_ARE if hint.encode() in low]
    as_they_are = [half.encode("latin-1") for half in _known_hints(forms)[1]]
    direct += [half.lower() for half in as_they_are if half in data]
    if not suspicious and not direct:
        return
    text, held = data.decode("latin-1"), b"\n".join(suspicious).lower().decode("latin-1")
    shapes = [
        shape for shape in SHAPES if direct or any(hint.translate(_NO_DIGITS) in held for hint in shape.hints)
    ]
    if not direct and not any(half.lower() in held for half in _known_hints(forms)[0]):
        forms = Known()
    start = 0
    for line in reduced:
        end = data.find(b"\n", start)
        end = len(data) if end < 0 else end
        if line in suspicious or (direct and any(low.find(needle, start, end) >= 0 for needle in direct)):
            yield from line_spans(text, start, end, forms, shapes)
        start = end + 1


def _suspicious(lines: set[bytes], forms: Known) -> Iterator[bytes]:
    """Those of `lines`, which have no digits, that may hold a secret.

    Words repeat more than lines do, so each is judged once; then the lines are searched for those found.
    """
    together = b"\n".join(lines)
    text = b"\n".join(set(together.split())).decode("latin-1")
    low = text.lower()
    needles = {hint for hint in _SHAPE_HINTS if _begins_a_word(low, hint.strip())}
    if "://" in low and "@" in low:
        needles.add("://")
    if any(hint in low for hint in HINTS):
        names = {name[-_MOST_NAME:] for name in _NAMES.findall(text) if _HINT.search(name)}
        secret = {name.lower() for name in names if is_secret_name(name)}
        needles |= secret if len(secret) <= _MOST_NAMES else set(HINTS)  # each line is searched for each
    halves = _known_hints(forms)[0]
    shown = together.decode("latin-1") if any(not half.isalnum() for half in halves) else text
    needles |= {half.lower() for half in halves if half in shown}
    if not needles:
        return
    wanted = [needle.encode("latin-1", "ignore") for needle in needles]
    for line in lines:
        low_line = line.lower()
        if any(needle in low_line for needle in wanted):
            yield line


def _begins_a_word(text: str, hint: str) -> bool:
    """Whether `hint` stands in `text` other than inside a word."""
    at = text.find(hint)
    while at > 0 and "a" <= text[at - 1] <= "z" and hint[0].isalpha():
        at = text.find(hint, at + 1)
    return at >= 0


@functools.lru_cache(maxsize=8)
def _known_hints(forms: Known) -> tuple[frozenset[str], frozenset[str]]:
    return _without_digits(forms.halves)
