"""Serves a running job to one person's browser: on 127.0.0.1 only, below a path that nobody can guess.

The page is one file without a source elsewhere; what it shows comes as Server-Sent Events and becomes text,
never markup. A login node has many users: the token in the path is compared in constant time, and the Host
header must name this machine's loopback.
"""

from __future__ import annotations

import json
import secrets
import threading
from dataclasses import asdict
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib import resources
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from rlprof_ops.errors import RlprofError
from rlprof_ops.operate.recorded import headline, read_summary, tables

_LOOPBACK = {"127.0.0.1", "localhost", "::1"}
_MOST_VIEWERS = 16


class LiveServer(ThreadingHTTPServer):
    """Serves the summary of a run folder until it is shut down."""

    daemon_threads = True

    def __init__(self, run: Path, port: int = 0, every_s: float = 2.0) -> None:
        self.run, self.every_s = run, every_s
        self.token = secrets.token_urlsafe(24)
        self.ended = threading.Event()
        self.viewers = threading.BoundedSemaphore(_MOST_VIEWERS)
        super().__init__(("127.0.0.1", port), partial(_Handler))

    @property
    def port(self) -> int:
        return int(self.server_address[1])

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/{self.token}/"

    def told(self) -> dict[str, Any]:
        """What the page shows now."""
        try:
            recorded = read_summary(self.run)
        except (RlprofError, OSError) as error:
            return {"lines": [str(error)], "seconds": [], "tables": []}
        return {
            "lines": headline(recorded),
            "seconds": [row[2] for row in recorded.data["history"]["steps"]],
            "tables": [asdict(table) for table in tables(recorded)],
        }

    def shutdown(self) -> None:
        self.ended.set()
        super().shutdown()


class _Handler(BaseHTTPRequestHandler):
    server: LiveServer
    timeout = 60

    def do_GET(self) -> None:
        name = self._asked()
        if name == "":
            self._page()
        elif name == "events" and self.server.viewers.acquire(blocking=False):
            try:
                self._events()
            finally:
                self.server.viewers.release()
        else:
            self._head(404, "text/plain")
            self.wfile.write(b"Nothing here: use the whole address that rlprof live printed.\n")

    def _asked(self) -> str | None:
        """The name after the token; None for whoever does not know it, or came by another host's name."""
        host = urlsplit("//" + (self.headers.get("Host") or "")).hostname
        token, slash, name = urlsplit(self.path).path.lstrip("/").partition("/")
        known = secrets.compare_digest(token.encode(), self.server.token.encode())
        return name if known and slash and host in _LOOPBACK else None

    def _page(self) -> None:
        nonce = secrets.token_urlsafe(12)
        page = resources.files(__package__).joinpath("live_page.html").read_text(encoding="utf-8")
        policy = (
            f"default-src 'none'; script-src 'nonce-{nonce}'; style-src 'unsafe-inline'; connect-src 'self';"
            " frame-ancestors 'none'; base-uri 'none'"
        )
        self._head(200, "text/html; charset=utf-8", policy)
        self.wfile.write(page.replace("NONCE", nonce).encode())

    def _events(self) -> None:
        self._head(200, "text/event-stream")
        before = ""
        try:
            while not self.server.ended.is_set():
                data = json.dumps(self.server.told())
                # A comment keeps the connection, and shows when nobody reads any more.
                self.wfile.write((": nothing new\n\n" if data == before else f"data: {data}\n\n").encode())
                self.wfile.flush()
                before = data
                self.server.ended.wait(self.server.every_s)
        except OSError:
            return

    def _head(self, status: int, kind: str, policy: str = "frame-ancestors 'none'") -> None:
        self.send_response(status)
        for key, value in (
            ("Content-Type", kind),
            ("Cache-Control", "no-store"),
            ("Referrer-Policy", "no-referrer"),
            ("X-Content-Type-Options", "nosniff"),
            ("Cross-Origin-Resource-Policy", "same-origin"),
            ("Content-Security-Policy", policy),
        ):
            self.send_header(key, value)
        self.end_headers()

    def log_message(self, format: str, *args: Any) -> None:
        """Says nothing: the address holds the token."""
