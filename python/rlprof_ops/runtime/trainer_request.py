"""A request that a trainer's own configuration makes, in a job that was asked for nothing itself.

The trainer's driver tells it once it has read its configuration; each supervisor leaves it in the node folder
for processes that started before, such as Ray's runtime-env agent.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from rlprof_ops import env_names

FILE = "request.json"


def store(node_dir: str | os.PathLike[str], text: str) -> None:
    """Leave the request for the processes of this node. Raises OSError."""
    path = Path(node_dir, FILE)
    partial = path.with_name(f".{FILE}.{os.getpid()}")
    partial.write_text(text, encoding="utf-8")
    os.replace(partial, path)


def with_request(env: Mapping[str, str]) -> Mapping[str, str]:
    """`env` with the node's request where it has none of its own."""
    if env.get(env_names.REQUEST_JSON) or not env.get(env_names.NODE_DIR):
        return env
    try:
        text = Path(env[env_names.NODE_DIR], FILE).read_text(encoding="utf-8")
    except OSError:
        return env
    return {**env, env_names.REQUEST_JSON: text}
