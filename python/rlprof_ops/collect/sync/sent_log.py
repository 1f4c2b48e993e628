"""What a node has already sent, kept as a journal so that a killed sync goes on where it was."""

from __future__ import annotations

import io
import json
import os
import threading
from dataclasses import dataclass
from pathlib import Path

from rlprof_ops.host import atomic, foreign


@dataclass(frozen=True)
class Sent:
    """One finished file that arrived: the source as it was, where it went, and its digest (None: not
    computed).
    """

    target: str
    size_bytes: int
    mtime_ns: int
    inode: int
    sha256: str | None
    removed: bool = False  # from the node, after the copy was read back and matched

    def same_source(self, found: os.stat_result) -> bool:
        return (found.st_size, found.st_mtime_ns, found.st_ino) == (
            self.size_bytes,
            self.mtime_ns,
            self.inode,
        )


class SentLog:
    """`Sent` records by source path, appended one JSON line each; the last line of a path wins.

    Paths that are not UTF-8 survive (surrogate escapes). A torn last line, left by a kill, is dropped.
    """

    def __init__(self, path: str | os.PathLike[str], *, read_only: bool = False) -> None:
        self.path = Path(path)
        self.sent: dict[str, Sent] = {}
        self._lock = threading.Lock()
        self._stream: io.FileIO | None = None
        lines, torn = self._load()
        if read_only:
            return
        self.path.parent.mkdir(parents=True, exist_ok=True)
        if torn or lines > 2 * len(self.sent) + 64:
            self._compact()
        self._stream = io.FileIO(self.path, "ab")  # open as long as the process lives

    def _load(self) -> tuple[int, bool]:
        lines = 0
        try:
            raw = self.path.read_bytes()
        except FileNotFoundError:
            return 0, False
        for line in raw.split(b"\n"):
            try:
                path, target, size, mtime, inode, digest, removed = foreign.parse(line)
            except ValueError:
                continue
            self.sent[path] = Sent(target, size, mtime, inode, digest, removed)
            lines += 1
        return lines, bool(raw) and not raw.endswith(b"\n")

    def _compact(self) -> None:
        atomic.write(self.path, b"".join(_line(*item) for item in self.sent.items()), durable=True)

    def add(self, path: str, sent: Sent) -> None:
        with self._lock:
            self.sent[path] = sent
            try:
                if self._stream is not None:
                    self._stream.write(_line(path, sent))
            except OSError:
                # the node's disk is full: the record lives on in memory, a restart compares with the run
                # folder
                pass

    def forget(self) -> None:
        """The run folder is not the one these records speak of: start again, but keep what is no longer on
        the node.
        """
        with self._lock:
            self.sent = {path: sent for path, sent in self.sent.items() if sent.removed}

    def close(self) -> None:
        if self._stream is not None:
            self._stream.close()


def _line(path: str, sent: Sent) -> bytes:
    row = [path, sent.target, sent.size_bytes, sent.mtime_ns, sent.inode, sent.sha256, sent.removed]
    return (json.dumps(row, separators=(",", ":")) + "\n").encode()
