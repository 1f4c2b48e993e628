"""Whether a memory report is whole: CUDA's allocation history (`.pickle`), or the host's memory."""

from __future__ import annotations

from pathlib import Path

from rlprof_ops.backends.contract import OK, TRUNCATED, Check, check_not_empty
from rlprof_ops.host import foreign

_MOST_BYTES = 256 << 20  # of a host memory report: a sample is a few bytes


def check(path: Path) -> Check:
    """A pickle ends with its STOP opcode "."; it is never loaded here, because loading a pickle runs it."""
    found = check_not_empty(path)
    if found:
        return found
    if path.name.endswith(".gz"):
        return _check_host(path)
    with path.open("rb") as snapshot:
        snapshot.seek(-1, 2)
        if snapshot.read(1) != b".":
            return Check(TRUNCATED, "the pickle does not end: it was cut while written")
    return Check(OK, details={"size_bytes": path.stat().st_size})


def _check_host(path: Path) -> Check:
    import gzip
    import zlib

    try:
        with gzip.open(path, "rb") as report:
            text = report.read(_MOST_BYTES + 1)
        if len(text) > _MOST_BYTES:
            return Check(TRUNCATED, f"it inflates to more than {_MOST_BYTES >> 20} MiB: no report of ours")
        foreign.parse(text)
    except (OSError, EOFError, zlib.error, ValueError) as error:
        return Check(TRUNCATED, f"the host memory report is cut or damaged ({error})")
    return Check(OK, details={"size_bytes": path.stat().st_size})
