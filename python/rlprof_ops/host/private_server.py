"""An HTTP server for one person: on 127.0.0.1 unless told otherwise, below a path that nobody can guess.

A login node has many users, and each of them can connect to 127.0.0.1. So the first part of the path is a
token, compared in constant time; nothing is a cookie, for cookies go to every port of a host. The Host header
must name this machine's loopback, or the address that one gave, so that a web site whose name is made to
point there (DNS rebinding) gets nothing.
"""

from __future__ import annotations

import secrets
import socket
from http.server import BaseHTTPRequestHandler, HTTPServer
from io import BufferedIOBase
from urllib.parse import urlsplit

from rlprof_ops.host.limited_server import LimitedServer

_LOOPBACK = frozenset({"127.0.0.1", "localhost", "::1"})
_ANY = ("0.0.0.0", "::")
_MOST_BYTES = 32 << 10  # of a request's line and headers together


class PrivateServer(LimitedServer, HTTPServer):
    """Raises `OSError` where the port is taken; 0 takes a free one. `token` "": whoever reaches it is
    answered."""

    def __init__(
        self,
        handler: type[PrivateHandler],
        port: int = 0,
        address: str = "127.0.0.1",
        token: str | None = None,
    ) -> None:
        self.token = secrets.token_urlsafe(24) if token is None else token
        self.address = address
        self.hosts = _LOOPBACK | {address}
        if ":" in address:
            self.address_family = socket.AF_INET6
        super().__init__((address, port), handler)

    @property
    def port(self) -> int:
        return int(self.server_address[1])

    @property
    def url(self) -> str:
        host = f"[{self.address}]" if ":" in self.address else self.address
        return f"http://{host}:{self.port}/{self.token}/" if self.token else f"http://{host}:{self.port}/"


class _Bounded:
    """The lines of a request. Raises TimeoutError, which ends it without a word, when they are too many."""

    def __init__(self, stream: BufferedIOBase) -> None:
        self._stream, self._left = stream, _MOST_BYTES

    def readline(self, size: int = -1) -> bytes:
        line = self._stream.readline(min(size, self._left) if size >= 0 else self._left)
        self._left -= len(line)
        if self._left <= 0:
            raise TimeoutError("the request is too long")
        return line

    def close(self) -> None:
        self._stream.close()


class PrivateHandler(BaseHTTPRequestHandler):
    """Answers whoever knows the address, and keeps what it answers to that page."""

    server: PrivateServer
    timeout = 60

    def setup(self) -> None:
        super().setup()
        self.rfile = _Bounded(self.rfile)  # type: ignore[assignment]

    def asked(self) -> str | None:
        """The name after the token; None for whoever does not know it, came by another host's name, or sends
        what is no address.
        """
        try:
            host = urlsplit("//" + (self.headers.get("Host") or "")).hostname
            path = urlsplit(self.path).path.lstrip("/")
        except ValueError:
            return None
        name = path
        if self.server.token:
            token, slash, name = path.partition("/")
            known = secrets.compare_digest(token.encode(), self.server.token.encode())
            if not known or not slash:
                return None
        if not self._is_ours(host):
            return None
        self.server.known(self.connection)
        return name

    def _is_ours(self, host: str | None) -> bool:
        """Every name will do where one asked to be reached by all of this machine's."""
        return host in self.server.hosts or self.server.address in _ANY

    def head(self, status: int, kind: str, **more: str) -> None:
        """Status line and headers; `more` by names with `_` for `-`, empty ones are left out."""
        self.send_response(status)
        common = {
            "Content-Type": kind,
            "Cache-Control": "no-store",
            "Referrer-Policy": "no-referrer",
            "X-Content-Type-Options": "nosniff",
            "Cross-Origin-Resource-Policy": "same-origin",
            "Content-Security-Policy": "frame-ancestors 'none'",
        }
        for key, value in (common | {name.replace("_", "-"): value for name, value in more.items()}).items():
            if value:
                self.send_header(key, value)
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        """Says nothing: the address holds the token."""
