"""A request that a trainer's own configuration makes, in a job that was asked for nothing itself.

The trainer's driver tells it once it has read its configuration; each supervisor leaves it in the node folder
for processes that started before, such as Ray's runtime-env agent.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from rlprof_ops import env_names
from rlprof_ops.host import atomic

if TYPE_CHECKING:
    from rlprof_ops.request import ProfileRequest

FILE = "request.json"


def store(node_dir: str | os.PathLike[str], text: str) -> None:
    """Leave the request for the processes of this node. Raises OSError."""
    atomic.write(Path(node_dir, FILE), text)


def with_request(env: Mapping[str, str]) -> Mapping[str, str]:
    """`env` with the node's request where it has none of its own."""
    if env.get(env_names.REQUEST_JSON) or not env.get(env_names.NODE_DIR):
        return env
    try:
        text = Path(env[env_names.NODE_DIR], FILE).read_text(encoding="utf-8")
    except OSError:
        return env
    return {**env, env_names.REQUEST_JSON: text}


def request_of(env: Mapping[str, str]) -> ProfileRequest | None:
    """The request of a process with these variables, of its own or of its node; None where nothing is
    asked. It is parsed once for one text.

    Raises:
        RequestError: it is no request.
    """
    text = with_request(env).get(env_names.REQUEST_JSON)
    if not text:
        return None
    from rlprof_ops.request import request_from_json

    request = request_from_json(text)
    return request if request else None


def whole_request_of(env: Mapping[str, str]) -> ProfileRequest | None:
    """The same, in a job that goes on with what earlier attempts of it brought home already."""
    whole = env.get(env_names.WHOLE_REQUEST_JSON)
    return request_of({env_names.REQUEST_JSON: whole} if whole else env)
