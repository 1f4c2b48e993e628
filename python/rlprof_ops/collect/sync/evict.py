"""Makes room on a node that runs full: takes away reports whose copy in the run folder was read back and
matches.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

from rlprof_ops.collect.sync.copy_bytes import Stopped, digest_of
from rlprof_ops.collect.sync.sent_log import Sent, SentLog
from rlprof_ops.host.contained_dir import ContainedDir
from rlprof_ops.job.folders import pinned_run
from rlprof_ops.window import room


def make_room(
    node_dir: Path,
    run_dir: Path,
    journal: SentLog,
    keep_free_bytes: int,
    stop: Callable[[], bool] = lambda: False,
    free_bytes: Callable[[Path], int] = room.free_bytes,
) -> Iterator[str]:
    """Remove finished reports, oldest first, until `keep_free_bytes` are free on the node; yields what was
    removed.

    Only files below `profiles/` that have not changed since they were sent and whose copy has the same size
    and digest.
    """
    if free_bytes(node_dir) >= keep_free_bytes:
        return
    oldest_first = sorted(
        (sent.mtime_ns, path)
        for path, sent in journal.sent.items()
        if path.startswith("profiles/") and not sent.removed
    )
    try:
        with ContainedDir(node_dir) as node, pinned_run(run_dir, node_dir).open() as run:
            for _, path in oldest_first:
                if stop() or free_bytes(node_dir) >= keep_free_bytes:
                    return
                sent = journal.sent[path]
                if _is_safe(node, run, path, sent, stop):
                    journal.add(path, replace(sent, removed=True))
                    node.unlink(path)
                    yield path
    except (OSError, Stopped):
        return  # storage in trouble: nothing is removed


def _is_safe(node: ContainedDir, run: ContainedDir, path: str, sent: Sent, stop: Callable[[], bool]) -> bool:
    here = node.stat(path)
    if here is None or not sent.same_source(here) or sent.sha256 is None:
        return False
    try:
        fd = run.open_read(sent.target)
    except FileNotFoundError:
        return False
    try:
        copy = digest_of(fd, stop)
    finally:
        os.close(fd)
    return (copy.size_bytes, copy.sha256) == (sent.size_bytes, sent.sha256)
