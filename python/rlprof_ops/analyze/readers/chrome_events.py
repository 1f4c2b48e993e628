"""Cuts a Chrome-trace stream into batches of events, whatever its layout, in memory of a fixed bound.

Where an event ends is never guessed from lines: a `}` that is followed by `,` and `{` is only a candidate,
and it is proven by decoding. `[` + text + `]` is valid JSON exactly when the text ends between two elements
of the array, so a batch that decodes ended at a true boundary; the cost of the proof is zero, for the batch
had to be decoded anyway.

Every element of the array is either given out or counted as damaged. Only where the text is no JSON is it a
guess where the next event begins, and a list of events that ends behind such a place is believed only if what
follows it is the rest of a header.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Generic, Literal, TypeVar, cast, overload

import msgspec

from rlprof_ops.analyze.readers.inflate import Inflated
from rlprof_ops.analyze.readers.read_error import UnreadableReport
from rlprof_ops.analyze.readers.scan.batches import Scanned, new_scanner

MAX_HEADER_BYTES = 16 << 20
MAX_EVENT_BYTES = 16 << 20
_LONG_EVENT_BYTES = 1 << 20  # an event of more, not ended yet, ends where the next one stands on its own
_MAX_DEPTH = 20_000  # of an event whose end is looked for
_TRIES = 6  # candidates tried from the end of a batch before its events are decoded one at a time
_TAIL_BYTES = 1 << 16
_EFFORT_BYTES = 128 << 20  # of text decoded in vain before a file is given up; as much again as was read well
_EFFORT_OF_A_TRY = 256

_BOUNDARY = re.compile(rb"\}\s*,\s*(?=\{)")
_START = re.compile(rb'"traceEvents"\s*:\s*\[')
_BARE_ARRAY = re.compile(rb"\s*\[\s*(?=[{\]])")
_ARRAY_END = re.compile(rb"\}\s*\]")
_CLOSE = re.compile(rb"\]\s*(?=[,}]|\Z)")
_INNER_CLOSE = re.compile(rb"\]\s*(?:\}\s*[],}]|,\s*[^\s\"])")  # of a list inside an event
_SEPARATOR = re.compile(rb"[,\s]*")
_BRACKETS = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"?|[][{}]', re.DOTALL)
_SCALAR = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"|[^][{}",\s]+', re.DOTALL)
_ESCAPE = re.compile(rb"\\(?:u[dD][89abAB]..\\u[dD][c-fC-F]..|(u[dD][89a-fA-F]..)|.)", re.DOTALL)
DAMAGE = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, OverflowError, ValueError)


class Event(msgspec.Struct, gc=False):
    """One Chrome-trace event. Times stay text until `decimal_time` reads a whole column of them, arguments
    until it is known whether anything is computed from them.
    """

    ph: str = ""
    cat: str = ""
    name: object = None
    pid: object = None
    tid: object = None
    ts: msgspec.Raw = msgspec.Raw(b"")
    dur: msgspec.Raw = msgspec.Raw(b"")
    args: msgspec.Raw = msgspec.Raw(b"")


Decoded = TypeVar("Decoded", bound="Event | Scanned | dict[str, object]")
_EVENTS = (msgspec.json.Decoder(list[Event]), msgspec.json.Decoder(Event))
_DICTS = (msgspec.json.Decoder(list[dict[str, object]]), msgspec.json.Decoder(dict[str, object]))
_elements = msgspec.json.Decoder(list[msgspec.Raw])
_element = msgspec.json.Decoder(msgspec.Raw)
_header = msgspec.json.Decoder(dict[str, object])


class ChromeEvents(Generic[Decoded]):
    """Iterates over lists of `Event`; afterwards `header`, `truncated` and `damaged` describe the rest of the
    file.

    `whole`: events are dicts with everything in them instead. `scanned`: batches that hold nothing unusual
    come as one `Scanned` in a list, where the scanner is there. Raises `UnreadableReport` when the stream
    holds no event array at all.
    """

    @overload
    def __init__(self: ChromeEvents[Event], path: Path) -> None: ...
    @overload
    def __init__(self: ChromeEvents[Event | Scanned], path: Path, *, scanned: Literal[True]) -> None: ...
    @overload
    def __init__(self: ChromeEvents[dict[str, object]], path: Path, *, whole: Literal[True]) -> None: ...
    def __init__(self, path: Path, *, whole: bool = False, scanned: bool = False) -> None:
        self.path = path
        self._batch, self._single = cast(
            "tuple[msgspec.json.Decoder[list[Decoded]], msgspec.json.Decoder[Decoded]]",
            _DICTS if whole else _EVENTS,
        )
        self._scanner = new_scanner() if scanned else None
        self._allowed = _EFFORT_BYTES
        self._spent = 0
        self._astray = False  # the text begins somewhere in what is already counted as damaged
        self.header: dict[str, object] = {}
        self.header_text = b""
        self.truncated = ""
        self.damaged = 0

    def __iter__(self) -> Iterator[list[Decoded]]:
        stream = Inflated(self.path)
        pieces = iter(stream)
        text = self._read_header(pieces, stream)
        trailer: bytes | None = None
        for piece in pieces:
            if trailer is not None:
                trailer += piece
                if len(trailer) <= MAX_HEADER_BYTES:
                    continue
                piece, text, self._astray = trailer, b"", True  # no header is as long
            events, text, trailer = self._cut(text + piece, last=False)
            if events:
                yield events
            if self._spent > self._allowed:
                break
        if trailer is None and self._spent <= self._allowed:
            events, text, trailer = self._cut(text, last=True)
            if events:
                yield events
        self.truncated = stream.truncated
        if trailer is None:
            self.truncated = self.truncated or "the file ends inside the list of events"
        while trailer is not None and not self._add_trailer(trailer) and self._spent <= self._allowed:
            self._spent += len(trailer)
            self._astray = True
            events, _, trailer = self._salvage(trailer, last=True)
            if events:
                yield events
        if self._spent > self._allowed:
            self.truncated = (
                f"so much of it is damaged that the rest was not read ({self.damaged} damaged events)"
            )

    def _read_header(self, pieces: Iterator[bytes], stream: Inflated) -> bytes:
        """Consumes the stream up to the event array; what follows its `[` is returned."""
        text = b""
        for piece in pieces:
            text += piece
            bare = _BARE_ARRAY.match(text)
            if bare:
                return text[bare.end() :]
            for match in _START.finditer(text):
                head = text[: match.start()]
                if self._add_header(head.rstrip().rstrip(b",") + b"}") or match.start() + 4096 < len(text):
                    self.header_text = head
                    return text[match.end() :]
            if len(text) > MAX_HEADER_BYTES:
                raise UnreadableReport(
                    self.path, f"no traceEvents list in its first {MAX_HEADER_BYTES >> 20} MiB"
                )
        begin = _START.search(text)
        if begin:
            self.header_text = text[: begin.start()]
            return text[begin.end() :]
        what = "is empty" if not text else "holds no traceEvents list, so it is no torch-profiler trace"
        raise UnreadableReport(self.path, f"{what}; {stream.truncated}" if stream.truncated else what)

    def _add_header(self, text: bytes) -> bool:
        for attempt in (text, without_lone_surrogates(text)):
            try:
                self.header |= _header.decode(attempt)
            except DAMAGE:
                continue
            return True
        return False

    def _add_trailer(self, text: bytes) -> bool:
        """Whether this is what follows a list of events: the rest of the header, if any."""
        body = text.strip(b" \t\r\n\0")
        return body in (b"", b"}") or (body.startswith(b",") and self._add_header(b'{"_":0' + body))

    def _cut(self, text: bytes, last: bool) -> tuple[list[Decoded], bytes, bytes | None]:
        """Events of `text`, the unfinished rest, and what follows the array once its end was met."""
        text = text.lstrip(b", \t\r\n")  # the separator, where the last batch ended just before it
        whole = None if self._astray else self._decode_prefix(text, last)
        return self._salvage(text, last) if whole is None else whole

    def _decode_prefix(self, text: bytes, last: bool) -> tuple[list[Decoded], bytes, bytes | None] | None:
        tail_start = max(0, len(text) - (len(text) if last and len(text) < MAX_EVENT_BYTES else _TAIL_BYTES))
        pattern = _ARRAY_END if last else _BOUNDARY
        cuts = [match.start() + 1 for match in pattern.finditer(text, tail_start)]
        for cut in reversed(cuts[-_TRIES:]):
            try:
                events = self._scan(text, cut) or self._decode(text, cut)
            except DAMAGE:
                continue
            self._allowed += 2 * cut
            follow = text[cut:].lstrip()
            if last:
                return events, b"", follow[1:]
            return events, follow[1:].lstrip(), None
        if not last and len(text) < MAX_EVENT_BYTES and not cuts:
            return [], text, None
        return None

    def _scan(self, text: bytes, cut: int) -> list[Decoded] | None:
        scanned = self._scanner.scan(text, cut) if self._scanner else None
        return None if scanned is None else cast("list[Decoded]", [scanned])

    def _decode(self, text: bytes, cut: int) -> list[Decoded]:
        """The events of a batch, without those that are none; raises where it is no list of elements."""
        batch = b"".join((b"[", memoryview(text)[:cut], b"]"))
        try:
            events: list[Decoded] = self._batch.decode(batch)
        except DAMAGE:
            elements = _elements.decode(batch)
            decoded = [self._event(bytes(element)) for element in elements]
            events = [event for event in decoded if event is not None]
            self.damaged += len(elements) - len(events)
        if self._scanner:
            self._scanner.in_vain()
        return events

    def _event(self, text: bytes) -> Decoded | None:
        """One event; None when the text is none."""
        for attempt in (text, without_lone_surrogates(text)):
            try:
                event: Decoded = self._single.decode(attempt)
            except DAMAGE:
                if b"\\u" in text:
                    continue
                return None
            return event
        return None

    def _salvage(self, text: bytes, last: bool) -> tuple[list[Decoded], bytes, bytes | None]:
        """Decodes event by event: damaged ones are counted and left out, the array's end is found where it
        is.
        """
        events: list[Decoded] = []
        at, boundary = 0, _BOUNDARY.search(text)
        while self._spent <= self._allowed:
            if self._astray:
                begin = self._next_event(text, at)
                if begin is None:
                    break
                at, self._astray = begin, False
            at = _separated(text, at)
            if at == len(text):
                return events, b"", None
            if text[at] == _CLOSES:
                if not self.damaged or not _INNER_CLOSE.match(text, at):
                    return events, b"", text[at + 1 :]
                self._astray = True
                continue
            while boundary and boundary.start() < at:
                boundary = _BOUNDARY.search(text, at)
            end = boundary.start() + 1 if boundary else None
            event = self._tried(text[at:end]) if end else None
            if event is None:
                end = _element_end(text, at, len(text))
            if end is None or (end == len(text) and not last):
                self._spent += len(text) - at
                alone = last or len(text) - at >= _LONG_EVENT_BYTES
                follows = self._next_event(text, at) if alone else None
                if follows is None and not last:
                    break  # the rest of it is to come
                self.damaged += 1
                at = len(text) if follows is None else follows
                continue
            if event is None:
                event = self._tried(text[at:end])
            if event is not None:
                events.append(event)
            else:
                self.damaged += 1
                if not _is_json(text[at:end]) and not self._goes_on(text, end):
                    self._astray = True
                    continue
            at = end
        return self._unfinished(events, text, at, last)

    def _unfinished(
        self, events: list[Decoded], text: bytes, at: int, last: bool
    ) -> tuple[list[Decoded], bytes, bytes | None]:
        """What `_salvage` gives where no further event was found behind `at`."""
        if last:
            ends = [match.start() + 1 for match in _CLOSE.finditer(text, max(at, len(text) - _TAIL_BYTES))]
            trailers = (text[end:] for end in ends[-_TRIES:])
            return events, b"", next((trailer for trailer in trailers if self._add_trailer(trailer)), None)
        if len(text) - at <= MAX_EVENT_BYTES:
            return events, text[at:], None
        self.damaged += not self._astray
        self._astray = True
        return events, text[-_TAIL_BYTES:], None

    def _tried(self, text: bytes) -> Decoded | None:
        event = self._event(text)
        if event is None:
            self._spent += len(text) + _EFFORT_OF_A_TRY
        return event

    def _next_event(self, text: bytes, at: int) -> int | None:
        """Where the next event behind `at` begins that stands on its own: within `_TAIL_BYTES` before a
        `"ph"`.
        """
        while (phase := text.find(b'"ph"', at)) >= 0:
            for boundary in _BOUNDARY.finditer(text, max(at, phase - _TAIL_BYTES), phase):
                if self._spent > self._allowed:
                    return None
                if self._stands_alone(text, boundary.end()):
                    return boundary.end()
            at = phase + 1
        return None

    def _stands_alone(self, text: bytes, at: int) -> bool:
        """Whether an event begins here; an object inside an event's arguments has no `ph`."""
        self._spent += _EFFORT_OF_A_TRY
        limit = min(len(text), at + _TAIL_BYTES)
        boundary = _BOUNDARY.search(text, at, limit)
        event = self._tried(text[at : boundary.start() + 1]) if boundary else None
        if event is None:
            end = _element_end(text, at, limit)
            event = self._tried(text[at:end]) if end else None
        return bool(event.get("ph") if isinstance(event, dict) else getattr(event, "ph", ""))

    def _goes_on(self, text: bytes, end: int) -> bool:
        """Whether the list goes on or ends behind an element that is no JSON but whose brackets close."""
        follows = _separated(text, end)
        if text[follows : follows + 1] == b"]":
            return not _INNER_CLOSE.match(text, follows)
        return self._stands_alone(text, follows)


_CLOSES = ord("]")


def _separated(text: bytes, at: int) -> int:
    found = _SEPARATOR.match(text, at)
    return found.end() if found else at


def _element_end(text: bytes, at: int, limit: int) -> int | None:
    """Where the element ends that begins here, however deep it is; None where it does not end before
    `limit`, or no element begins here.
    """
    if text[at : at + 1] not in (b"{", b"["):
        scalar = _SCALAR.match(text, at, limit)
        return scalar.end() if scalar else None
    depth = 0
    for token in _BRACKETS.finditer(text, at, limit):
        first = text[token.start()]
        if first in b"{[":
            depth += 1
            if depth > _MAX_DEPTH:
                return None
        elif first in b"}]":
            depth -= 1
            if not depth:
                return token.end()
    return None


def _is_json(text: bytes) -> bool:
    """Whether an element is sound, whatever it is; what is nested too deep to tell counts as sound."""
    try:
        _element.decode(text)
    except RecursionError:
        return True
    except DAMAGE:
        return False
    return True


def without_lone_surrogates(text: bytes) -> bytes:
    """JSON text with the replacement character in place of every escaped half of a pair."""
    return _ESCAPE.sub(lambda found: b"\\ufffd" if found.group(1) else found.group(), text)
