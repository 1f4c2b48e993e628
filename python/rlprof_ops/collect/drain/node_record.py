"""Builds `nodes/<node>.json`: what this node had and what became of each file."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from rlprof_ops.collect.sync.__main__ import read_report
from rlprof_ops.collect.sync.routes import goes_home, is_dump, is_report_like
from rlprof_ops.collect.sync.sent_log import SentLog
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
    """The record of docs/contracts.md. A file that never reached the run folder as it is now has the state
    `left`. A node is not `clean` when one of them is a report or a raw capture, wherever it lies, or when a
    recovery has failed; it is `cleared`, its folder removed, when the run folder has all of them.
    """
    journal = SentLog(node_dir / "sync" / "state.jsonl", read_only=True)
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
    left = _left(node_dir, journal)
    files += left
    report, failed = read_report(node_dir), tuple(failed)
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
    if _holds_reports(left):
        record["clean"] = False
    # A raw capture that does not import is in the run folder, where the harvest tries again.
    record["cleared"] = record["clean"]
    record["clean"] = record["clean"] and not failed
    return record


def is_only_copy(node_dir: Path) -> bool:
    """Whether a node folder holds what the run folder never got: a report or a raw capture, or a record in
    `keep/`.
    """
    journal = SentLog(node_dir / "sync" / "state.jsonl", read_only=True)
    kept = any(path.is_file() for path in (node_dir / "keep").rglob("*"))
    return kept or _holds_reports(_left(node_dir, journal))


def _holds_reports(left: Iterable[Mapping[str, Any]]) -> bool:
    return any(goes_home(entry["path"]) or is_report_like(entry["path"]) for entry in left)


def _left(node_dir: Path, journal: SentLog) -> list[dict[str, Any]]:
    """Files that the run folder does not have as they are now: all of the profiles tree, dumps of torch's
    flight recorder, reports and raw captures anywhere.
    """
    found: list[dict[str, Any]] = []
    try:
        with ContainedDir(node_dir) as tree:
            for path, stat in tree.files():
                sent = journal.sent.get(path)
                if sent is not None and sent.same_source(stat):
                    continue
                if not path.startswith("profiles/") and not (
                    stat.st_size and (is_report_like(path) or is_dump(path))
                ):
                    continue
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
