"""How a capture is launched, gated, named and checked: nsight, torch, rocprof_sys, memory."""

from __future__ import annotations

from difflib import get_close_matches

from rlprof_ops.backends.base import EMPTY, OK, TRUNCATED, Backend, Check
from rlprof_ops.errors import UsageError

NAMES = ("nsight", "torch", "rocprof_sys", "memory")

__all__ = ["EMPTY", "NAMES", "OK", "TRUNCATED", "Backend", "Check", "get"]


def get(name: str) -> Backend:
    """The backend called `name`; raises `UsageError` with the nearest name for an unknown one."""
    if name not in NAMES:
        near = get_close_matches(name, NAMES, n=1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise UsageError(f"unknown backend {name!r}: allowed are {', '.join(NAMES)}{hint}")
    # One import a name instead of import_module(f"..."): type checkers and packagers see them.
    if name == "nsight":
        from rlprof_ops.backends.nsight import BACKEND
    elif name == "torch":
        from rlprof_ops.backends.torch import BACKEND
    elif name == "memory":
        from rlprof_ops.backends.memory import BACKEND
    else:
        from rlprof_ops.backends.rocprof_sys import BACKEND
    return BACKEND
