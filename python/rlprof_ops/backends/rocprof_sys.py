"""rocprof-sys: what its Perfetto traces are called and whether one has bytes."""

from __future__ import annotations

from pathlib import Path

from rlprof_ops.backends.base import OK, Backend, Check, check_not_empty

SUFFIX = ".proto"


def check(path: Path) -> Check:
    """A Perfetto file is a stream of packets without an end mark: only "has bytes" can be told cheaply."""
    return check_not_empty(path) or Check(OK, details={"size_bytes": path.stat().st_size})


BACKEND = Backend("rocprof_sys", (SUFFIX,), check)
