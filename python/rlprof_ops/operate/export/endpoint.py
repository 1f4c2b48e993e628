"""The OpenMetrics text of a running job, for a Prometheus that asks for it itself."""

from __future__ import annotations

import threading
from pathlib import Path
from types import TracebackType

from rlprof_ops.errors import RlprofError
from rlprof_ops.host.private_server import PrivateHandler, PrivateServer
from rlprof_ops.operate.export import openmetrics
from rlprof_ops.operate.recorded import read_summary

CONTENT_TYPE = "application/openmetrics-text; version=1.0.0; charset=utf-8"
NAME = "metrics"


class MetricsServer(PrivateServer):
    """Answers from a thread of its own, with what the recorder has told last. Raises OSError where it cannot
    listen.
    """

    def __init__(self, run: Path, port: int, address: str = "127.0.0.1", token: str | None = None) -> None:
        self.run = run
        super().__init__(_Handler, port, address, token)

    def __enter__(self) -> MetricsServer:
        threading.Thread(target=self.serve_forever, name="rlprof-metrics", daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.shutdown()
        self.server_close()


class _Handler(PrivateHandler):
    server: MetricsServer

    def do_GET(self) -> None:
        if self.asked() != NAME:
            self.head(404, "text/plain")
            self.wfile.write(b"Nothing here: use the whole address that rlprof export printed.\n")
            return
        try:
            text = openmetrics.text(read_summary(self.server.run).data)
        except (RlprofError, OSError) as error:
            self.head(503, "text/plain; charset=utf-8")
            self.wfile.write(f"{error}\n".encode("utf-8", "replace"))
            return
        self.head(200, CONTENT_TYPE)
        self.wfile.write(text.encode("utf-8", "replace"))
