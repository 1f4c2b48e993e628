"""A request that a trainer's own configuration makes, in a job that was asked for nothing itself.

The trainer's driver tells it once it has read its configuration; each supervisor leaves it in the node folder
for processes that started before, such as Ray's runtime-env agent.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

FILE = "request.json"
_VARIABLE = "RLPROF_REQUEST_JSON"


def store(node_dir: str | os.PathLike[str], text: str) -> None:
    """Leave the request for the processes of this node. Raises OSError."""
    path = Path(node_dir, FILE)
    partial = path.with_name(f".{FILE}.{os.getpid()}")
    partial.write_text(text, encoding="utf-8")
    os.replace(partial, path)


def with_request(env: Mapping[str, str]) -> Mapping[str, str]:
    """`env` with the node's request where it has none of its own."""
    if env.get(_VARIABLE) or not env.get("RLPROF_NODE_DIR"):
        return env
    try:
        text = Path(env["RLPROF_NODE_DIR"], FILE).read_text(encoding="utf-8")
    except OSError:
        return env
    return {**env, _VARIABLE: text}
