"""Serves one run's report to one person: on 127.0.0.1 only, below a path that nobody can guess.

A login node has many users, and each of them can connect to 127.0.0.1. So the first part of the path is a
token, compared in constant time; nothing is a cookie, for cookies go to every port of a host. The Host header
must name this machine's loopback, so that a web site whose name is made to point there (DNS rebinding) gets
nothing. Only the report and the timeline's files are served, never a path from the address.
"""

from __future__ import annotations

import os
import secrets
import shutil
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import urlsplit

from rlprof_ops.analyze.output.text import size
from rlprof_ops.analyze.page.render import handover, render
from rlprof_ops.analyze.report_model import Answer
from rlprof_ops.host import foreign

PERFETTO = "https://ui.perfetto.dev"
TIMELINES = {
    "timeline.overview.pftrace": "phases, collectives, GPU busy and the longest kernels of all ranks",
    "timeline.ranks.zip": "every full trace (Perfetto v58.2 or later)",
}
_TYPES = {".json": "application/json", ".zip": "application/zip", ".pftrace": "application/octet-stream"}
_LOOPBACK = {"127.0.0.1", "localhost", "::1"}


class ReportServer(ThreadingHTTPServer):
    """Serves `report.json` of a folder as a page, and the timeline's files in it, until it is shut down."""

    daemon_threads = True

    def __init__(self, folder: Path, port: int = 0, perfetto: str = PERFETTO) -> None:
        self.folder = folder
        self.perfetto = perfetto
        self.token = secrets.token_urlsafe(24)
        self._page: tuple[object, bytes] = (None, b"")
        super().__init__(("127.0.0.1", port), partial(_Handler))

    @property
    def port(self) -> int:
        return int(self.server_address[1])

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/{self.token}/"

    def timelines(self) -> list[Path]:
        return [path for name in TIMELINES if (path := self.folder / name).is_file()]

    def answer(self) -> Answer:
        found: Answer = foreign.read(self.folder / "report.json", 2 << 30)
        return found

    def page(self) -> bytes:
        """The page as the folder is now: made anew when the report or the timeline was."""
        names = [path.name for path in self.timelines()]
        state = ((self.folder / "report.json").stat().st_mtime_ns, names)
        if self._page[0] != state:
            self._page = (state, render(self.answer(), names, served=True).encode())
        return self._page[1]

    def handover(self, nonce: str) -> bytes:
        files = [
            {"name": path.name, "size": size(path.stat().st_size), "what": TIMELINES[path.name]}
            for path in self.timelines()
        ]
        return handover(self.answer()["run"], files, self.perfetto, nonce).encode()


class _Handler(BaseHTTPRequestHandler):
    server: ReportServer
    timeout = 60

    def do_GET(self) -> None:
        name = self._asked()
        if name is None:
            self._refuse()
        elif name == "":
            self._send(303, b"", "text/plain", location="report.html")
        elif name == "report.html":
            self._send(200, self.server.page(), "text/html; charset=utf-8")
        elif name == "timeline":
            nonce = secrets.token_urlsafe(12)
            policy = (
                f"default-src 'none'; script-src 'nonce-{nonce}'; style-src 'unsafe-inline'; img-src data:;"
                " connect-src 'self'; frame-ancestors 'none'; base-uri 'none'"
            )
            self._send(200, self.server.handover(nonce), "text/html; charset=utf-8", policy=policy)
        elif name in ("report.json", *TIMELINES):
            self._file(name)
        else:
            self._refuse()

    do_HEAD = do_GET

    def _asked(self) -> str | None:
        """The name after the token; None for whoever does not know it, or came by another host's name."""
        host = urlsplit("//" + (self.headers.get("Host") or "")).hostname
        token, slash, name = urlsplit(self.path).path.lstrip("/").partition("/")
        known = secrets.compare_digest(token.encode(), self.server.token.encode())
        return name if known and slash and host in _LOOPBACK else None

    def _refuse(self) -> None:
        self._send(404, b"Nothing here: use the whole address that rlprof view printed.\n", "text/plain")

    def _file(self, name: str) -> None:
        try:
            file = open(self.server.folder / name, "rb")  # noqa: SIM115 (closed below, after the headers)
        except OSError:
            self._refuse()
            return
        with file:
            self._head(200, os.fstat(file.fileno()).st_size, _TYPES[Path(name).suffix], {})
            if self.command == "GET":
                shutil.copyfileobj(file, self.wfile, 1 << 20)

    def _send(self, status: int, body: bytes, kind: str, location: str = "", policy: str = "") -> None:
        more = {"Location": location, "Content-Security-Policy": policy or "frame-ancestors 'none'"}
        self._head(status, len(body), kind, more)
        if self.command == "GET":
            self.wfile.write(body)

    def _head(self, status: int, length: int, kind: str, more: dict[str, str]) -> None:
        self.send_response(status)
        common = {
            "Content-Type": kind,
            "Content-Length": str(length),
            "Cache-Control": "no-store",
            "Referrer-Policy": "no-referrer",
            "X-Content-Type-Options": "nosniff",
            "Cross-Origin-Resource-Policy": "same-origin",
        }
        for key, value in (common | more).items():
            if value:
                self.send_header(key, value)
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        """Says nothing: the address holds the token."""
