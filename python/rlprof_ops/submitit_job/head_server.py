"""Where the head is, asked of the first task over TCP, so that waiting tasks leave shared storage alone.

The port follows from the job's number, and somebody else may listen there: an answer counts when it proves
the job's token, which only this user can read.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import json
import secrets
import socket
import socketserver
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from rlprof_ops.host import foreign
from rlprof_ops.host.limited_server import LimitedServer

_LOWEST, _RANGE, _STEP, _TRIES = 10007, 22000, 14, 4  # apart from Ray's and ours (host/ports.free_pair)
_CONNECT_S, _TALK_S = 2.0, 5.0
_MOST_BYTES = 4096
_ASKED = b"asked by "  # no JSON, so no proof of the first task's own


def ports(job: int) -> list[int]:
    """Those that the first task tries in turn."""
    return [_LOWEST + (job * 2 + number * _STEP) % _RANGE for number in range(_TRIES)]


class HeadServer:
    """Answers `told` to all, and ends when the other `tasks` of the job have it, which each proves."""

    def __init__(self, told: Mapping[str, Any], token: str, job: int, tasks: int) -> None:
        """Raises OSError when no port of the job's is free."""
        outer = self
        self._line = json.dumps(dict(told)).encode()
        self._asked: set[bytes] = set()  # ranks
        self._all_asked = threading.Event()

        class Visit(socketserver.StreamRequestHandler):
            timeout = _TALK_S

            def handle(self) -> None:
                with contextlib.suppress(OSError):
                    nonce = self.rfile.readline(_MOST_BYTES).strip()
                    self.wfile.write(outer._line + b"\n" + _proof(token, nonce, outer._line) + b"\n")
                    rank, proof = (self.rfile.readline(_MOST_BYTES).strip() for _ in range(2))
                    if not hmac.compare_digest(proof, _proof(token, nonce, _ASKED + rank)):
                        return
                    outer._asked.add(rank)
                    if len(outer._asked) >= tasks:
                        outer._all_asked.set()

        self._server = _listen(Visit, job)
        self.port: int = self._server.server_address[1]
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        threading.Thread(target=self._close_when_all_asked, daemon=True).start()

    def _close_when_all_asked(self) -> None:
        self._all_asked.wait()
        self.close()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


class _Server(LimitedServer):
    allow_reuse_address = True  # or what it answered keeps its port from the next job for a minute
    request_queue_size = 1024
    most_strangers = 1024  # all tasks of a job may come at once


def _listen(visit: type[socketserver.BaseRequestHandler], job: int) -> _Server:
    problem = OSError("no port")
    for port in ports(job):
        try:
            return _Server(("", port), visit)
        except OSError as error:
            problem = error
    raise problem


def ask(addresses: Iterable[str], job: int, token: Callable[[], str], rank: int = 1) -> dict[str, Any] | None:
    """What the first task tells task `rank`; None when nobody answers there who has the token. `token` is
    called at most once, and only when somebody answers.
    """
    known: list[str] = []
    for address in addresses:
        for connection, line, nonce, proof in _answers(address, job):
            with contextlib.suppress(OSError, ValueError):
                known = known or [token()]
                if known[0] and hmac.compare_digest(proof, _proof(known[0], nonce, line)):
                    told = foreign.parse(line.decode())
                    mine = b"%d" % rank
                    connection.sendall(mine + b"\n" + _proof(known[0], nonce, _ASKED + mine) + b"\n")
                    return told if isinstance(told, dict) else None
    return None


def _answers(address: str, job: int) -> Iterator[tuple[socket.socket, bytes, bytes, bytes]]:
    for port in ports(job):
        nonce = secrets.token_hex(16).encode()
        try:
            with socket.create_connection((address, port), _CONNECT_S) as connection:
                connection.settimeout(_TALK_S)
                connection.sendall(nonce + b"\n")
                with connection.makefile("rb") as stream:
                    line, proof = (stream.readline(_MOST_BYTES).strip() for _ in range(2))
                yield connection, line, nonce, proof
        except OSError:
            continue


def _proof(token: str, nonce: bytes, line: bytes) -> bytes:
    text = b"rlprof rendezvous\n" + nonce + b"\n" + line
    return hmac.new(token.encode(), text, hashlib.sha256).hexdigest().encode()
