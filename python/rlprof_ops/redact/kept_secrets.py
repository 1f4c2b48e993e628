"""Secrets that were seen on a node, in a private file of its folder: whoever sends reports after the
processes that had them have ended finds them there.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

from rlprof_ops.host import atomic, foreign

_NAME = "secrets.json"


def read(folder: Path) -> frozenset[str]:
    """Those that were kept in `folder`; none where there is no file of ours."""
    try:
        return frozenset(filter(None, map(foreign.text, foreign.a_list(foreign.read(folder / _NAME)))))
    except (OSError, ValueError):
        return frozenset()


def write(folder: Path, values: Iterable[str]) -> bool:
    """Keep `values` instead of those before, for this user alone; whether that could be done."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        atomic.write(folder / _NAME, json.dumps(sorted(values)), mode=0o600)
    except OSError:
        return False
    return True
