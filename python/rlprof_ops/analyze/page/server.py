"""Serves one run's report to one person (`host/private_server`): only the report and the timeline's files,
never a path from the address.
"""

from __future__ import annotations

import os
import secrets
import shutil
from pathlib import Path

from rlprof_ops.analyze.answer_file import read_answer
from rlprof_ops.analyze.output.text import size
from rlprof_ops.analyze.page.html_page import handover, render
from rlprof_ops.analyze.report_model import Answer
from rlprof_ops.host.private_server import PrivateHandler, PrivateServer

PERFETTO = "https://ui.perfetto.dev"
TIMELINES = {
    "timeline.overview.pftrace": "phases, collectives, GPU busy and the longest kernels of all ranks",
    "timeline.ranks.zip": "every full trace (Perfetto v58.2 or later)",
}
_TYPES = {".json": "application/json", ".zip": "application/zip", ".pftrace": "application/octet-stream"}


class ReportServer(PrivateServer):
    """Serves `report.json` of a folder as a page, and the timeline's files in it, until it is shut down."""

    def __init__(self, folder: Path, port: int = 0, perfetto: str = PERFETTO) -> None:
        self.folder = folder
        self.perfetto = perfetto
        self._page: tuple[object, bytes] = (None, b"")
        super().__init__(_Handler, port)

    def timelines(self) -> list[Path]:
        return [path for name in TIMELINES if (path := self.folder / name).is_file()]

    def answer(self) -> Answer:
        return read_answer(self.folder / "report.json")

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
        return handover(self.answer().run, files, self.perfetto, nonce).encode()


class _Handler(PrivateHandler):
    server: ReportServer

    def do_GET(self) -> None:
        name = self.asked()
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

    def _refuse(self) -> None:
        self._send(
            404, b"Nothing here: use the whole address that rlprof report --serve printed.\n", "text/plain"
        )

    def _file(self, name: str) -> None:
        try:
            file = open(self.server.folder / name, "rb")  # noqa: SIM115 (closed below, after the headers)
        except OSError:
            self._refuse()
            return
        with file:
            self.head(200, _TYPES[Path(name).suffix], Content_Length=str(os.fstat(file.fileno()).st_size))
            if self.command == "GET":
                shutil.copyfileobj(file, self.wfile, 1 << 20)

    def _send(self, status: int, body: bytes, kind: str, location: str = "", policy: str = "") -> None:
        more = {"Content_Security_Policy": policy} if policy else {}
        self.head(status, kind, Content_Length=str(len(body)), Location=location, **more)
        if self.command == "GET":
            self.wfile.write(body)
