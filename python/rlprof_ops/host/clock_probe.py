"""How far this node's clock is from the head's: a few signed datagrams at job start and end, for the one
timeline.

The rule is NTP's (RFC 5905, section 8): of the four times of an exchange, offset = ((t1 - t0) + (t2 - t3)) /
2, and its error is at most half the round trip. The exchange with the shortest round trip tells most.
"""

from __future__ import annotations

import hmac
import os
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

_NONCE = 16
_SIGNATURE = 16
_TIMES = struct.Struct("<qq")
_REQUEST = _NONCE + _SIGNATURE
_REPLY = _NONCE + _TIMES.size + _SIGNATURE


@dataclass(frozen=True)
class Exchange:
    """UTC nanoseconds: asked and answered by this clock, received and replied by the reference's."""

    asked_ns: int
    received_ns: int
    replied_ns: int
    answered_ns: int

    @property
    def round_trip_ns(self) -> int:
        return (self.answered_ns - self.asked_ns) - (self.replied_ns - self.received_ns)

    @property
    def offset_ns(self) -> int:
        """What must be added to this node's clock to read the reference's."""
        return ((self.received_ns - self.asked_ns) + (self.replied_ns - self.answered_ns)) // 2


@dataclass(frozen=True)
class Estimate:
    """`offset_ns` is added to this node's times to get the reference's; the truth is within `error_ns` of
    it.
    """

    at_ns: int
    offset_ns: int
    error_ns: int
    exchanges: int

    def to_dict(self, moment: str, reference: str) -> dict[str, Any]:
        """An entry of `clock` in nodes/<node>.json; `moment` is start or end, `reference` a node."""
        return {
            "moment": moment,
            "reference": reference,
            "at_ns": self.at_ns,
            "offset_ns": self.offset_ns,
            "error_ns": self.error_ns,
            "exchanges": self.exchanges,
        }


def estimate(exchanges: Iterable[Exchange]) -> Estimate | None:
    """The best estimate of some exchanges; None when there are none that can be true (a round trip is not
    negative).
    """
    usable = [exchange for exchange in exchanges if exchange.round_trip_ns >= 0]
    if not usable:
        return None
    best = min(usable, key=lambda exchange: exchange.round_trip_ns)
    return Estimate(best.answered_ns, best.offset_ns, (best.round_trip_ns + 1) // 2, len(usable))


class ClockServer:
    """Answers with its times on a UDP port of `host`; only to datagrams signed with `key` (the job's
    token).
    """

    def __init__(self, host: str, key: bytes, port: int = 0, clock: Callable[[], int] = time.time_ns) -> None:
        self._key, self._clock = key, clock
        self._socket = _bound(host, port)
        self.port: int = self._socket.getsockname()[1]
        self._thread = threading.Thread(target=self._serve, name="clock", daemon=True)
        self._closing = False
        self._thread.start()

    def close(self) -> None:
        self._closing = True
        with socket.socket(self._socket.family, socket.SOCK_DGRAM) as wake:
            wake.sendto(b"", self._socket.getsockname()[:2])
        self._thread.join(2)
        self._socket.close()

    def _serve(self) -> None:
        while not self._closing:
            try:
                request, address = self._socket.recvfrom(_REQUEST + 1)
            except OSError:
                return
            received = self._clock()
            reply = self._reply(request, received)
            if reply is not None:
                try:
                    self._socket.sendto(reply, address)
                except OSError:
                    continue

    def _reply(self, request: bytes, received_ns: int) -> bytes | None:
        nonce, signature = request[:_NONCE], request[_NONCE:]
        if len(request) != _REQUEST or not hmac.compare_digest(signature, _sign(self._key, b"ask", nonce)):
            return None
        body = nonce + _TIMES.pack(received_ns, self._clock())
        return body + _sign(self._key, b"answer", body)


def measure(
    host: str,
    port: int,
    key: bytes,
    *,
    exchanges: int = 16,
    timeout_s: float = 0.5,
    clock: Callable[[], int] = time.time_ns,
) -> Estimate | None:
    """Ask a `ClockServer` some times; lost, late and unsigned answers are left out. None when no answer
    came.
    """
    found: list[Exchange] = []
    misses = 0
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind, protocol) as channel:
            channel.settimeout(timeout_s)
            channel.connect(address)  # answers of others are not received
            while len(found) + misses < exchanges and misses < 4:
                exchange = _ask(channel, key, clock)
                if exchange is None:
                    misses += 1
                else:
                    found.append(exchange)
    except OSError:
        pass
    return estimate(found)


def _ask(channel: socket.socket, key: bytes, clock: Callable[[], int]) -> Exchange | None:
    nonce = os.urandom(_NONCE)
    asked = clock()
    try:
        channel.send(nonce + _sign(key, b"ask", nonce))
        while True:
            reply = channel.recv(_REPLY + 1)
            answered = clock()
            body, signature = reply[:-_SIGNATURE], reply[-_SIGNATURE:]
            if (
                len(reply) == _REPLY
                and reply[:_NONCE] == nonce
                and hmac.compare_digest(signature, _sign(key, b"answer", body))
            ):
                received, replied = _TIMES.unpack(body[_NONCE:])
                return Exchange(asked, received, replied, answered)
    except OSError:
        return None


def _sign(key: bytes, purpose: bytes, data: bytes) -> bytes:
    return hmac.digest(key, purpose + data, "sha256")[:_SIGNATURE]


def _bound(host: str, port: int) -> socket.socket:
    family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
    channel = socket.socket(family, kind, protocol)
    try:
        channel.bind(address)
    except OSError:
        channel.close()
        raise
    return channel
