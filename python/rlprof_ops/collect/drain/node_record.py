"""Builds `nodes/<node>.json`: what this node had and what became of each file."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from rlprof_ops.collect.sync.__main__ import read_report
from rlprof_ops.collect.sync.routes import goes_home
from rlprof_ops.collect.sync.sent_log import Journal
from rlprof_ops.host.contained_dir import ContainedDir

SCHEMA = 1


def build_node_record(
    node_dir: Path,
    node: str,
    facts: Mapping[str, Any],
    *,
    recovered: Iterable[str] = (),
    failed: Iterable[tuple[str, str]] = (),
) -> dict[str, Any]:
    """The record of docs/contracts.md. A finished file that never reached the run folder has the state
    `left`, and such a node is not `clean`.
    """
    journal = Journal(node_dir / "sync" / "state.jsonl", read_only=True)
    files = [
        {
            "path": path,
            "target": sent.target,
            "size_bytes": sent.size_bytes,
            "sha256": sent.sha256,
            "mtime_ns": sent.mtime_ns,
            "state": "removed" if sent.removed else "copied",
        }
        for path, sent in sorted(journal.sent.items())
    ]
    left = [entry for entry in _left(node_dir) if entry["path"] not in journal.sent]
    files += left
    report = read_report(node_dir)
    not_copied = [*(report.failed if report else ()), *failed]
    record: dict[str, Any] = {
        "schema": SCHEMA,
        "node": node,
        "host": socket.gethostname(),
        "role": "worker",
        "job": "",
        "pid": os.getpid(),
        "started_ns": 0,
        "ended_ns": time.time_ns(),
        "plugin_loaded": (node_dir / "plugin_loaded").exists(),
        "nsys": None,
        "clean": False,
        "files": files,
        "recovered": sorted(recovered),
        "failed": [{"path": path, "reason": reason} for path, reason in not_copied],
        "clock": [],
    }
    record.update(facts)
    if any(goes_home(entry["path"]) for entry in left):
        record["clean"] = False
    return record


def _left(node_dir: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    try:
        with ContainedDir(node_dir) as tree:
            for path, stat in tree.files("profiles"):
                found.append(
                    {
                        "path": path,
                        "size_bytes": stat.st_size,
                        "sha256": None,
                        "mtime_ns": stat.st_mtime_ns,
                        "state": "left",
                    }
                )
    except OSError:
        pass
    return found
