"""A TCP server whose clients prove who they are: those that have not yet are few, and not for long."""

from __future__ import annotations

import contextlib
import socket
import socketserver
import sys
import threading
import time
from typing import Any


class LimitedServer(socketserver.ThreadingMixIn, socketserver.TCPServer):
    """Closes connections that nobody has called `known` within `stranger_seconds`, and of more than
    `most_strangers` the one that has waited longest.

    So whoever cannot prove anything can neither use up threads nor keep those out who can.
    """

    daemon_threads = True
    most_strangers = 64
    stranger_seconds = 10.0

    def __init__(self, *args: Any, **options: Any) -> None:
        self._strangers: dict[socket.socket, float] = {}  # since when; the oldest first
        self._changing = threading.Lock()
        super().__init__(*args, **options)

    def known(self, connection: socket.socket) -> None:
        """Whoever is at the other end may stay."""
        with self._changing:
            self._strangers.pop(connection, None)

    def process_request(self, request: Any, client_address: Any) -> None:
        with self._changing:
            self._strangers[request] = time.monotonic()
        self._end_strangers()
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        self.known(request)
        super().shutdown_request(request)

    def service_actions(self) -> None:
        """Called by `serve_forever` twice a second."""
        super().service_actions()
        self._end_strangers()

    def _end_strangers(self) -> None:
        with self._changing:
            overdue = time.monotonic() - self.stranger_seconds
            for connection, since in list(self._strangers.items()):
                if since > overdue and len(self._strangers) <= self.most_strangers:
                    break
                del self._strangers[connection]
                with contextlib.suppress(OSError):  # its thread wakes up and closes it
                    connection.shutdown(socket.SHUT_RDWR)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """One line for a fault of ours, none for a connection that broke; never a traceback."""
        error = sys.exc_info()[1]
        if not isinstance(error, OSError):
            print(f"rlprof: a request failed: {type(error).__name__}: {error}", file=sys.stderr)
