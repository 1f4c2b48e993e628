"""An HTTP server for one person: on 127.0.0.1 only, below a path that nobody can guess.

A login node has many users, and each of them can connect to 127.0.0.1. So the first part of the path is a
token, compared in constant time; nothing is a cookie, for cookies go to every port of a host. The Host header
must name this machine's loopback, so that a web site whose name is made to point there (DNS rebinding) gets
nothing.
"""

from __future__ import annotations

import secrets
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit

_LOOPBACK = {"127.0.0.1", "localhost", "::1"}


class PrivateServer(ThreadingHTTPServer):
    """Raises `OSError` where the port is taken; 0 takes a free one."""

    daemon_threads = True

    def __init__(self, handler: type[PrivateHandler], port: int = 0) -> None:
        self.token = secrets.token_urlsafe(24)
        super().__init__(("127.0.0.1", port), handler)

    @property
    def port(self) -> int:
        return int(self.server_address[1])

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/{self.token}/"


class PrivateHandler(BaseHTTPRequestHandler):
    """Answers whoever knows the address, and keeps what it answers to that page."""

    server: PrivateServer
    timeout = 60

    def asked(self) -> str | None:
        """The name after the token; None for whoever does not know it, or came by another host's name."""
        host = urlsplit("//" + (self.headers.get("Host") or "")).hostname
        token, slash, name = urlsplit(self.path).path.lstrip("/").partition("/")
        known = secrets.compare_digest(token.encode(), self.server.token.encode())
        return name if known and slash and host in _LOOPBACK else None

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
