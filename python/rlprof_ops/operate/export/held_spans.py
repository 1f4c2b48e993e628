"""Spans on their way to a collector: each is held until it has been taken, or until too many wait."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any

_AT_ONCE = 512  # spans in one request
_MOST_HELD = 50_000


class HeldSpans:
    """Stands before an exporter of the SDK's. What that could not send goes again with the next `send`, after
    what has not been tried yet. `lost`: spans that will not go again, since too many waited or after `close`.
    """

    def __init__(self, exporter: Any, most: int = _MOST_HELD) -> None:
        self._exporter, self._most = exporter, most
        self._held: deque[Any] = deque()
        self._refused = False
        self.lost = 0

    def export(self, spans: Sequence[Any]) -> None:
        """Take spans that have ended; they are sent as soon as they fill a request, unless one was refused
        since the last `send`.
        """
        self._held += spans
        if len(self._held) >= _AT_ONCE and not self._refused:
            self.send()
        while len(self._held) > self._most:
            self._held.popleft()
            self.lost += 1

    def send(self) -> None:
        """Send all, until a request is not taken: a collector that is gone costs the exporter's time limit
        once.
        """
        self._refused = False
        while self._held and not self._refused:
            batch = [self._held.popleft() for _ in range(min(_AT_ONCE, len(self._held)))]
            if not self._taken(batch):
                self._refused = True
                self._held += batch

    def _taken(self, batch: list[Any]) -> bool:
        try:
            return bool(self._exporter.export(batch).name == "SUCCESS")
        except (OSError, ValueError):
            return False

    def shutdown(self) -> None:
        """Send what is left; what is not taken now is lost."""
        self.send()
        self.lost += len(self._held)
        self._held.clear()
        self._exporter.shutdown()
