"""Serves a running job to one person's browser (`host/private_server`).

The page is one file without a source elsewhere; what it shows comes as Server-Sent Events and becomes text,
never markup.
"""

from __future__ import annotations

import json
import secrets
import threading
from dataclasses import asdict
from importlib import resources
from pathlib import Path
from typing import Any

from rlprof_ops.errors import RlprofError
from rlprof_ops.host.private_server import PrivateHandler, PrivateServer
from rlprof_ops.operate.recorded import headline, read_summary, tables

_MOST_VIEWERS = 16


class LiveServer(PrivateServer):
    """Serves the summary of a run folder until it is shut down."""

    def __init__(self, run: Path, port: int = 0, every_s: float = 2.0) -> None:
        self.run, self.every_s = run, every_s
        self.ended = threading.Event()
        self.viewers = threading.BoundedSemaphore(_MOST_VIEWERS)
        super().__init__(_Handler, port)

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


class _Handler(PrivateHandler):
    server: LiveServer

    def do_GET(self) -> None:
        name = self.asked()
        if name == "":
            self._page()
        elif name == "events" and not self.server.viewers.acquire(blocking=False):
            self.head(503, "text/plain")
            self.wfile.write(f"{_MOST_VIEWERS} pages show this job already: close one.\n".encode())
        elif name == "events":
            try:
                self._events()
            finally:
                self.server.viewers.release()
        else:
            self.head(404, "text/plain")
            self.wfile.write(b"Nothing here: use the whole address that rlprof top --serve printed.\n")

    def _page(self) -> None:
        nonce = secrets.token_urlsafe(12)
        page = resources.files(__package__).joinpath("live_page.html").read_text(encoding="utf-8")
        policy = (
            f"default-src 'none'; script-src 'nonce-{nonce}'; style-src 'unsafe-inline'; connect-src 'self';"
            " frame-ancestors 'none'; base-uri 'none'"
        )
        self.head(200, "text/html; charset=utf-8", Content_Security_Policy=policy)
        self.wfile.write(page.replace("NONCE", nonce).encode())

    def _events(self) -> None:
        self.head(200, "text/event-stream")
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
