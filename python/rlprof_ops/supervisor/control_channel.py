"""The control channel between the node supervisors: JSON lines over TCP, opened by each node to the head.

It carries who has joined, when to drain, and who is done, so that nobody polls a file on shared storage (a
cached negative lookup there can hide a new file for minutes). A node proves that it belongs to the job with
an HMAC of the job's token over a number the head has just drawn; the token itself never crosses the network.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import hmac
import json
import secrets
from collections.abc import Awaitable, Callable
from typing import Any

Message = dict[str, Any]
_LINE_LIMIT = 1 << 20
_HANDSHAKE_SECONDS = 10.0


def _proof(token: str, nonce: str, node: str) -> str:
    return hmac.new(token.encode(), f"{nonce}\n{node}".encode(), hashlib.sha256).hexdigest()


async def _send(writer: asyncio.StreamWriter, message: Message) -> None:
    writer.write(json.dumps(message).encode() + b"\n")
    await writer.drain()


async def _receive(reader: asyncio.StreamReader) -> Message | None:
    """The next message, or None when the other side is gone or talks nonsense."""
    try:
        line = await reader.readline()
        message = json.loads(line) if line else None
    except (ValueError, OSError):
        return None
    return message if isinstance(message, dict) else None


class Head:
    """The head's side: accepts nodes, hands every message to `on_message(node, message)`, sends to all.

    `on_message` gets `{"state": "joined", …}` after a good handshake and `{"state": "lost"}` when a link
    breaks.
    """

    def __init__(self, token: str, on_message: Callable[[str, Message], None]) -> None:
        self._token = token
        self._on_message = on_message
        self._writers: dict[str, asyncio.StreamWriter] = {}
        self._server: asyncio.Server | None = None

    async def listen(self, host: str, port: int) -> None:
        self._server = await asyncio.start_server(self._serve, host, port, limit=_LINE_LIMIT)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        node = await self._handshake(reader, writer)
        if node is None:
            writer.close()
            return
        self._writers[node] = writer
        while (message := await _receive(reader)) is not None:
            self._on_message(node, message)
        if self._writers.get(node) is writer:
            del self._writers[node]
            self._on_message(node, {"state": "lost"})
        writer.close()

    async def _handshake(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> str | None:
        nonce = secrets.token_hex(16)
        try:
            await _send(writer, {"nonce": nonce})
            hello = await asyncio.wait_for(_receive(reader), _HANDSHAKE_SECONDS)
        except (OSError, asyncio.TimeoutError):
            return None
        node = str((hello or {}).get("node", ""))
        if not node or not hmac.compare_digest(
            str((hello or {}).get("proof", "")), _proof(self._token, nonce, node)
        ):
            return None
        self._on_message(node, {"state": "joined", **(hello or {})})
        return node

    async def tell(self, message: Message) -> None:
        """Send to every node; a node that cannot take it is left to its `lost` message."""
        for writer in list(self._writers.values()):
            with contextlib.suppress(OSError):
                await _send(writer, message)

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()
        for writer in list(self._writers.values()):
            writer.close()


class Node:
    """A worker node's side: keeps one link to the head."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    async def join(cls, host: str, port: int, token: str, hello: Message, deadline: float) -> Node:
        """Connect, again and again until the loop's time is `deadline`; `hello` needs the key `node`.

        Raises TimeoutError when the head does not answer in time.
        """
        loop = asyncio.get_running_loop()
        pause = 0.05
        while True:
            try:
                reader, writer = await asyncio.wait_for(
                    asyncio.open_connection(host, port, limit=_LINE_LIMIT), timeout=5
                )
                challenge = await asyncio.wait_for(_receive(reader), _HANDSHAKE_SECONDS)
                if challenge and "nonce" in challenge:
                    proof = _proof(token, str(challenge["nonce"]), str(hello["node"]))
                    await _send(writer, {**hello, "proof": proof})
                    return cls(reader, writer)
                writer.close()
            except (OSError, asyncio.TimeoutError):
                pass
            if loop.time() + pause > deadline:
                raise TimeoutError(f"the head's supervisor at {host}:{port} did not answer")
            await asyncio.sleep(pause)
            pause = min(pause * 1.5, 1.0)

    async def tell(self, message: Message) -> None:
        with contextlib.suppress(OSError):
            await _send(self._writer, message)

    async def listen(self, on_message: Callable[[Message], Awaitable[None] | None]) -> None:
        """Hand every message to `on_message`; returns when the head is gone."""
        while (message := await _receive(self._reader)) is not None:
            done = on_message(message)
            if done is not None:
                await done

    def close(self) -> None:
        self._writer.close()
