"""The control channel between the node supervisors: JSON lines over TCP, opened by each node to the head.

It carries who has joined, when to drain, and who is done, so that nobody polls a file on shared storage (a
cached negative lookup there can hide a new file for minutes). Both sides prove that they belong to the job
with an HMAC of the job's token over a number the other has just drawn; the token itself never crosses the
network. A message is a frozen dataclass; its class's name is its `kind` on the wire.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import hmac
import json
import secrets
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar

from rlprof_ops.host import foreign

_LINE_LIMIT = 1 << 20
_HELLO_LIMIT = 4 << 10  # bytes of a line from one who has proved nothing yet
_MOST_STRANGERS = 1024  # links that have proved nothing yet; of more, the oldest is closed
_HANDSHAKE_SECONDS = 10.0
_MOST_UNSENT = 4 << 20  # bytes that a node has not taken: it hangs, and its link is given up
_BACKLOG = 4096  # links that all nodes of a job open at once; the kernel may allow less
_VISITOR = "\nvisitor"  # no node's name


class Message:
    """What goes over the channel; subclasses are the kinds, wherever they are defined."""

    kinds: ClassVar[dict[str, type[Message]]] = {}

    def __init_subclass__(cls) -> None:
        cls.kinds[cls.__name__] = cls


# ---- from a node to the head


@dataclass(frozen=True)
class Joined(Message):
    """A node has proved that it belongs to the job. `before`: how its last supervisor ended; `folder`: its
    node folder.
    """

    node: str
    ip: str
    pid: int = 0
    before: str = ""
    folder: str = ""


@dataclass(frozen=True)
class RayUp(Message):
    """Ray runs on the node, and the cluster's GCS knows it: `ray start` waits for that. It hears steps."""


@dataclass(frozen=True)
class Failed(Message):
    """The node cannot serve."""

    reason: str


@dataclass(frozen=True)
class Ending(Message):
    """The node ends, for a reason of its own or because it was told to."""

    cause: str


@dataclass(frozen=True)
class ProfilersDone(Message):
    """The node's windows are closed and its profilers have written."""

    phases_s: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Drained(Message):
    """The node's files are in the run folder, or it has said which are not."""

    phases_s: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Lost(Message):
    """The link broke; made by the head itself."""


# ---- from a command of the job's user to the head


@dataclass(frozen=True)
class Visits(Message):
    """Somebody who knows the job's token has something to ask."""


# ---- from the head to the nodes


@dataclass(frozen=True)
class Drain(Message):
    """End in order within `seconds`; up to `most_s` for what still makes progress."""

    seconds: float
    cause: str
    most_s: float = 0.0


@dataclass(frozen=True)
class StopRay(Message):
    """Every node's windows are closed: Ray may go."""


def encode(message: Message) -> bytes:
    """One line."""
    return json.dumps({"kind": type(message).__name__, **vars(message)}).encode() + b"\n"


def decode(values: dict[str, Any]) -> Message | None:
    """The message of one line; None for a kind this version does not know and for fields of a wrong type."""
    kind = Message.kinds.get(str(values.get("kind")))
    if kind is None:
        return None
    with contextlib.suppress(ValueError):
        return foreign.typed(values, kind)
    return None


def _proof(token: str, nonce: str, who: str) -> str:
    text = f"{nonce}\n{who}".encode(errors="surrogatepass")  # JSON can hold half a character
    return hmac.new(token.encode(), text, hashlib.sha256).hexdigest()


def _is_proof(values: dict[str, Any], token: str, nonce: str, who: str) -> bool:
    given = str(values.get("proof", "")).encode(errors="surrogatepass")
    return hmac.compare_digest(given, _proof(token, nonce, who).encode())


async def _send_line(writer: asyncio.StreamWriter, line: bytes) -> None:
    writer.write(line)
    await writer.drain()


async def _send(writer: asyncio.StreamWriter, values: dict[str, Any]) -> None:
    await _send_line(writer, json.dumps(values).encode() + b"\n")


async def _receive(lines: _Lines) -> dict[str, Any] | None:
    """The next line's values, or None when the other side is gone or talks nonsense."""
    with contextlib.suppress(ValueError, OSError):
        values = foreign.parse(await lines.next())
        return values if isinstance(values, dict) else None
    return None


class _Lines:
    """Lines of a link, none longer than `most` bytes, which grows once the other side has proved itself."""

    def __init__(self, reader: asyncio.StreamReader, most: int = _LINE_LIMIT) -> None:
        self.most = most
        self._reader = reader
        self._rest = bytearray()

    async def next(self) -> bytes:
        """The next line; what is left at the end of the link. Raises ValueError for one that is too long."""
        searched = 0
        while (end := self._rest.find(b"\n", searched)) < 0 and len(self._rest) <= self.most:
            searched = len(self._rest)
            block = await self._reader.read(self.most + 1)
            if not block:
                end = searched
                break
            self._rest += block
        if not 0 <= end <= self.most:
            raise ValueError("the line is too long")
        line = bytes(self._rest[: end + 1])
        del self._rest[: end + 1]
        return line


class ControlServer:
    """The head's side: accepts nodes, hands every message to `on_message(node, message)`, sends to all.

    `on_message` gets `Joined` after a good handshake and `Lost` when a link breaks. What a visitor asks goes
    to `on_visit`, which says whether it was taken.
    """

    def __init__(
        self,
        token: str,
        on_message: Callable[[str, Message], None],
        on_visit: Callable[[Message], Awaitable[bool]] | None = None,
    ) -> None:
        self._token = token
        self._on_visit = on_visit
        self._on_message = on_message
        self._writers: dict[str, asyncio.StreamWriter] = {}
        self._strangers: dict[asyncio.StreamWriter, None] = {}  # the oldest first
        self._server: asyncio.Server | None = None

    async def listen(self, host: str, port: int) -> None:
        self._server = await asyncio.start_server(
            self._serve, host, port, limit=_HELLO_LIMIT, backlog=_BACKLOG
        )

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        lines = _Lines(reader, _HELLO_LIMIT)
        transport: Any = writer.transport
        block, transport.max_size = transport.max_size, _HELLO_LIMIT  # asyncio's: what one read may take
        self._strangers[writer] = None
        if len(self._strangers) > _MOST_STRANGERS:
            next(iter(self._strangers)).transport.abort()
        try:
            joined = await self._handshake(lines, writer)
        finally:
            del self._strangers[writer]
        if not isinstance(joined, Joined):
            if joined is not None:
                await self._visited(lines, writer)
            writer.close()
            return
        transport.max_size = block
        node = joined.node
        self._writers[node] = writer
        self._on_message(node, joined)
        while (values := await _receive(lines)) is not None:
            message = decode(values)
            if message is not None and not isinstance(message, (Joined, Lost)):
                self._on_message(node, message)
        if self._writers.get(node) is writer:
            del self._writers[node]
            self._on_message(node, Lost())
        writer.close()

    async def _visited(self, lines: _Lines, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, asyncio.TimeoutError):
            values = await asyncio.wait_for(_receive(lines), _HANDSHAKE_SECONDS)
            asked = decode(values or {})
            if asked is not None and self._on_visit is not None:
                await _send(writer, {"taken": await self._on_visit(asked)})

    async def _handshake(self, lines: _Lines, writer: asyncio.StreamWriter) -> Joined | Visits | None:
        nonce = secrets.token_hex(16)
        try:
            await _send(writer, {"nonce": nonce})
            hello = await asyncio.wait_for(_receive(lines), _HANDSHAKE_SECONDS)
            joined = decode(hello or {})
            if hello is None or not isinstance(joined, (Joined, Visits)):
                return None
            who = joined.node if isinstance(joined, Joined) else _VISITOR
            if not who or not _is_proof(hello, self._token, nonce, who):
                return None
            lines.most = _LINE_LIMIT
            # Only one who knows the token learns what the head's own proof looks like.
            await _send(writer, {"proof": _proof(self._token, str(hello.get("nonce", "")), "head")})
        except (OSError, asyncio.TimeoutError):
            return None
        return joined

    async def send(self, message: Message) -> None:
        """Send to every node, and wait for none: one that hangs must not keep the others from their step. A
        node that cannot take it is left to its `Lost` message.
        """
        line = encode(message)
        for writer in list(self._writers.values()):
            with contextlib.suppress(OSError):
                writer.write(line)
                if writer.transport.get_write_buffer_size() > _MOST_UNSENT:
                    writer.transport.abort()

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()
        for writer in list(self._writers.values()):
            writer.close()


class NodeLink:
    """A worker node's side: keeps one link to the head."""

    def __init__(self, lines: _Lines, writer: asyncio.StreamWriter) -> None:
        self._lines = lines
        self._writer = writer

    @classmethod
    async def join(cls, host: str, port: int, token: str, hello: Joined, deadline: float) -> NodeLink:
        """Connect, again and again until the loop's time is `deadline`.

        Raises TimeoutError when the head does not answer in time, or cannot prove that it knows the token.
        """
        loop = asyncio.get_running_loop()
        pause = 0.05
        problem = "did not answer"
        while True:
            try:
                reader, writer = await asyncio.wait_for(
                    asyncio.open_connection(host, port, limit=_LINE_LIMIT), timeout=5
                )
                lines = _Lines(reader)
                if await _shake_hands(lines, writer, token, hello):
                    return cls(lines, writer)
                problem = "did not prove that it knows the job's token"
                writer.close()
            except (OSError, asyncio.TimeoutError):
                pass
            if loop.time() + pause > deadline:
                raise TimeoutError(f"the head's supervisor at {host}:{port} {problem}")
            await asyncio.sleep(pause)
            pause = min(pause * 1.5, 1.0)

    async def send(self, message: Message) -> None:
        with contextlib.suppress(OSError):
            await _send_line(self._writer, encode(message))

    async def listen(self, on_message: Callable[[Message], Awaitable[None] | None]) -> None:
        """Hand every message to `on_message`; returns when the head is gone."""
        while (values := await _receive(self._lines)) is not None:
            message = decode(values)
            done = on_message(message) if message is not None else None
            if done is not None:
                await done

    def close(self) -> None:
        self._writer.close()


async def visit(host: str, port: int, token: str, asked: Message, seconds: float) -> bool:
    """Ask the head of a job for something; whether it has taken it. False as well when it cannot be reached
    within `seconds`, or cannot prove that it knows the token.
    """

    async def ask() -> bool:
        reader, writer = await asyncio.open_connection(host, port, limit=_LINE_LIMIT)
        try:
            lines = _Lines(reader)
            if not await _shake_hands(lines, writer, token, Visits()):
                return False
            await _send_line(writer, encode(asked))
            answer = await _receive(lines)
            return answer is not None and answer.get("taken") is True
        finally:
            writer.close()

    try:
        return await asyncio.wait_for(ask(), seconds)
    except (OSError, asyncio.TimeoutError):
        return False


async def _shake_hands(
    lines: _Lines, writer: asyncio.StreamWriter, token: str, hello: Joined | Visits
) -> bool:
    """Prove to the head that this side knows the token, and check that the head does."""
    challenge = await asyncio.wait_for(_receive(lines), _HANDSHAKE_SECONDS)
    if not challenge or "nonce" not in challenge:
        return False
    nonce = secrets.token_hex(16)
    who = hello.node if isinstance(hello, Joined) else _VISITOR
    proof = _proof(token, str(challenge["nonce"]), who)
    kind = type(hello).__name__
    await _send(writer, {"kind": kind, **vars(hello), "nonce": nonce, "proof": proof})
    answer = await asyncio.wait_for(_receive(lines), _HANDSHAKE_SECONDS)
    return answer is not None and _is_proof(answer, token, nonce, "head")
