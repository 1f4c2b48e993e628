"""Cuts a Chrome-trace stream into batches of typed events, whatever its layout, in memory of a fixed bound.

Where an event ends is never guessed from lines: a `}` that is followed by `,` and `{` is only a candidate,
and it is proven by decoding. `[` + text + `]` is valid JSON exactly when the text ends between two elements
of the array, so a batch that decodes ended at a true boundary; the cost of the proof is zero, for the batch
had to be decoded anyway.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Generic, Literal, TypeGuard, TypeVar, cast, overload

import msgspec

from rlprof_ops.analyze.readers.inflate import Inflated
from rlprof_ops.analyze.readers.read_error import UnreadableReport
from rlprof_ops.analyze.readers.scan.batches import Scanned, new_scanner
from rlprof_ops.analyze.readers.typed_events import CollectiveArgs, Typed
from rlprof_ops.analyze.readers.typed_events import decoder as typed_decoder

MAX_HEADER_BYTES = 16 << 20
MAX_EVENT_BYTES = 16 << 20
_TRIES = 6  # candidates tried from the end of a batch before its events are decoded one at a time
_MAX_JOINS = 512  # pieces that one event may be made of: objects in lists inside its args
_TAIL_BYTES = 1 << 16
_EFFORT_BYTES = 128 << 20  # of text decoded in vain before a file is given up; as much again as was read well
_EFFORT_OF_A_TRY = 64
_REFUSALS = 8  # typed batches that a file may refuse before all are read without types

_BOUNDARY = re.compile(rb"\}\s*,\s*(?=\{)")
_START = re.compile(rb'"traceEvents"\s*:\s*\[')
_BARE_ARRAY = re.compile(rb"\s*\[\s*(?=[{\]])")
_ARRAY_END = re.compile(rb"\}\s*\]")
_DAMAGE = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, OverflowError, ValueError)


class Args(CollectiveArgs, gc=False, frozen=True):
    """The few of an event's arguments that anything is computed from."""

    stream: object = None
    device: object = None
    correlation: object = None
    bytes: object = None
    name: object = None
    labels: object = None
    allocated: object = msgspec.field(name="Total Allocated", default=None)
    reserved: object = msgspec.field(name="Total Reserved", default=None)
    memory_device: object = msgspec.field(name="Device Id", default=None)
    memory_type: object = msgspec.field(name="Device Type", default=None)


class Event(msgspec.Struct, gc=False):
    """One Chrome-trace event; times stay text until `decimal_time` reads a whole column of them."""

    ph: str = ""
    cat: str = ""
    name: object = None
    pid: object = None
    tid: object = None
    ts: msgspec.Raw = msgspec.Raw(b"")
    dur: msgspec.Raw = msgspec.Raw(b"")
    args: Args | None = None


Decoded = TypeVar("Decoded", bound="Event | Typed | Scanned | dict[str, object]")
_EVENTS = (msgspec.json.Decoder(list[Event]), msgspec.json.Decoder(Event))
_DICTS = (msgspec.json.Decoder(list[dict[str, object]]), msgspec.json.Decoder(dict[str, object]))
_header = msgspec.json.Decoder(dict[str, object])


class ChromeEvents(Generic[Decoded]):
    """Iterates over lists of `Event`; afterwards `header`, `truncated` and `damaged` describe the rest of the
    file.

    `whole`: events are dicts with everything in them instead. `typed`: batches that hold nothing unusual come
    as one `Scanned` in a list, where the scanner is there, or as the structs of `typed_events`, the others as
    `Event`. Raises `UnreadableReport` when the stream holds no event array at all.
    """

    @overload
    def __init__(self: ChromeEvents[Event], path: Path) -> None: ...
    @overload
    def __init__(self: ChromeEvents[dict[str, object]], path: Path, *, whole: Literal[True]) -> None: ...
    @overload
    def __init__(
        self: ChromeEvents[Event | Typed | Scanned], path: Path, *, typed: Literal[True]
    ) -> None: ...
    def __init__(self, path: Path, *, whole: bool = False, typed: bool = False) -> None:
        self.path = path
        self._batch, self._single = cast(
            "tuple[msgspec.json.Decoder[list[Decoded]], msgspec.json.Decoder[Decoded]]",
            _DICTS if whole else _EVENTS,
        )
        self._scanner = new_scanner() if typed else None
        self._typed = typed
        self._refused = 0
        self._allowed = _EFFORT_BYTES
        self._spent = 0
        self._text = b""
        self.header: dict[str, object] = {}
        self.header_text = b""
        self.truncated = ""
        self.damaged = 0

    def __iter__(self) -> Iterator[list[Decoded]]:
        stream = Inflated(self.path)
        pieces = iter(stream)
        rest = self._read_header(pieces, stream)
        trailer: bytes | None = None
        for piece in pieces:
            if trailer is not None:
                trailer = (trailer + piece)[:MAX_HEADER_BYTES]
                continue
            events, rest, trailer = self._cut(rest + piece, last=False)
            if events:
                yield events
            if self._spent > self._allowed:
                self.truncated = (
                    f"so much of it is damaged that the rest was not read ({self.damaged} damaged events)"
                )
                return
        if trailer is None:
            events, rest, trailer = self._cut(rest, last=True)
            if events:
                yield events
        self.truncated = stream.truncated
        if trailer is None:
            self.truncated = self.truncated or "the file ends inside the list of events"
        else:
            self._add_header(b'{"_":0' + trailer if trailer.lstrip().startswith(b",") else b"{}")

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
        try:
            self.header |= _header.decode(text)
        except _DAMAGE:
            return False
        return True

    def _cut(self, text: bytes, last: bool) -> tuple[list[Decoded], bytes, bytes | None]:
        """Events of `text`, the unfinished rest, and what follows the array once its end was met."""
        text = text.lstrip(b", \t\r\n")  # the separator, where the last batch ended just before it
        whole = self._decode_prefix(text, last)
        if whole is not None:
            return whole
        return self._salvage(text, last)

    def _decode_prefix(self, text: bytes, last: bool) -> tuple[list[Decoded], bytes, bytes | None] | None:
        tail_start = max(0, len(text) - (len(text) if last and len(text) < MAX_EVENT_BYTES else _TAIL_BYTES))
        pattern = _ARRAY_END if last else _BOUNDARY
        cuts = [match.start() + 1 for match in pattern.finditer(text, tail_start)]
        for cut in reversed(cuts[-_TRIES:]):
            try:
                events = self._scan(text, cut) or self._decode(text, cut, last)
            except _DAMAGE:
                continue
            self._allowed += 2 * cut
            follow = text[cut:].lstrip()
            if last:
                return events, b"", follow[1:]
            return events, follow[1:].lstrip(), None
        if not last and len(text) < MAX_EVENT_BYTES and not cuts:
            return [], text, None
        if text.strip() in (b"", b"]") or text.lstrip()[:1] == b"]":
            return [], b"", text.lstrip()[1:] if text.strip() else None
        return None

    def _scan(self, text: bytes, cut: int) -> list[Decoded] | None:
        scanned = self._scanner.scan(text, cut) if self._scanner else None
        return None if scanned is None else cast("list[Decoded]", [scanned])

    def _decode(self, text: bytes, cut: int, last: bool) -> list[Decoded]:
        events = self._decode_batch(b"".join((b"[", memoryview(text)[:cut], b"]")), last)
        if self._scanner:
            self._scanner.in_vain()
        return events

    def _decode_batch(self, text: bytes, last: bool) -> list[Decoded]:
        if self._typed and not last:
            try:
                typed = cast("list[Decoded]", typed_decoder.decode(text))
            except msgspec.ValidationError:
                self._refuse()  # sound JSON perhaps, of another shape
            else:
                self._text = text
                return typed
        events: list[Decoded] = self._batch.decode(text)
        return events

    def untyped(self) -> list[Decoded]:
        """The batch that was just given out, decoded with types that take everything and keep the text of
        times; what not even they take is counted as damaged.
        """
        self._refuse()
        try:
            events: list[Decoded] = self._batch.decode(self._text)
        except _DAMAGE:
            events = self._salvage(self._text[1:-1], last=True)[0]
        return events

    def _refuse(self) -> None:
        """Counts a batch that was decoded in vain; a file of such batches is not tried for ever."""
        self._refused += 1
        self._typed = self._refused < _REFUSALS

    def _salvage(self, text: bytes, last: bool) -> tuple[list[Decoded], bytes, bytes | None]:
        """Decodes event by event: damaged ones are counted and left out, the array's end is found where it
        is.
        """
        events: list[Decoded] = []
        bounds = [0, *(match.end() for match in _BOUNDARY.finditer(text)), len(text)]
        begin, joins = 0, 0
        for index in range(1, len(bounds)):
            end = bounds[index]
            event = self._decode_single(_unseparated(text[begin:end]))
            if event is not None:
                events.append(event)
                begin, joins = end, 0
                continue
            closed = self._at_array_end(text[begin:end])
            if closed is not None:
                events.append(closed[0])
                return events, b"", text[begin + closed[1] :]
            if index + 1 == len(bounds) or self._spent > self._allowed:
                break
            joins += 1
            after = text[end : bounds[index + 1]]
            if (
                joins > _MAX_JOINS
                or self._decode_single(_unseparated(after)) is not None
                or self._at_array_end(after)
            ):
                self.damaged += 1  # what comes next stands on its own, so what came before is no part of it
                begin, joins = end, 0
        rest = text[begin:]
        if last:
            if rest.strip() not in (b"", b"]"):
                self.damaged += 1 if rest.strip() else 0
            return events, b"", None if not rest.strip().startswith(b"]") else rest.strip()[1:]
        if len(rest) > MAX_EVENT_BYTES:
            self.damaged += 1
            rest = rest[-_TAIL_BYTES:]
            boundary = _BOUNDARY.search(rest)
            rest = rest[boundary.end() :] if boundary else rest
        return events, rest, None

    def _at_array_end(self, piece: bytes) -> tuple[Decoded, int] | None:
        for number, match in enumerate(_ARRAY_END.finditer(piece)):
            event = self._decode_single(piece[: match.start() + 1])
            if event is not None:
                return event, match.end()
            if number >= _TRIES:
                return None
        return None

    def _decode_single(self, text: bytes) -> Decoded | None:
        """One event, None when the text is none; an object in a list inside an event's args has no `ph`."""
        try:
            event = self._single.decode(text)
        except _DAMAGE:
            self._spent += len(text) + _EFFORT_OF_A_TRY
            return None
        return event if (event.get("ph") if isinstance(event, dict) else getattr(event, "ph", "")) else None


def are_events(batch: Sequence[Event | Typed | Scanned]) -> TypeGuard[list[Event]]:
    """Whether a batch came as events that take everything: all of it did then."""
    return bool(batch) and isinstance(batch[0], Event)


def _unseparated(text: bytes) -> bytes:
    body = text.rstrip()
    return body[:-1] if body.endswith(b",") else body
