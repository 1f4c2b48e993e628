"""The requests that a run folder has of one replica."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from rlprof_ops.runtime.request_log import EngineRequest


def requests_of(run: Path, rank: int) -> tuple[dict[str, Any], list[EngineRequest]]:
    """The file of one replica: its first line, and its rows."""
    for path in run.glob("nodes/*/requests/*.jsonl"):
        first, *rows = map(json.loads, path.read_text().splitlines())
        if first["rank"] == rank:
            assert first["fields"] == list(EngineRequest._fields)
            return first, [EngineRequest(*row) for row in rows]
    raise AssertionError(f"no requests of rank {rank} in {run}")
