"""Memory snapshots: CUDA allocation history (`.pickle`) and host memory (`.host-memory.json.gz`)."""

from __future__ import annotations

from pathlib import Path

from rlprof_ops.backends import memory_options
from rlprof_ops.backends.base import OK, TRUNCATED, Asked, Backend, Check, Verdict, Where, check_not_empty
from rlprof_ops.host import foreign

SUFFIX = ".pickle"
HOST_SUFFIX = ".host-memory.json.gz"
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


def validate(spec: Asked, where: Where) -> Verdict:
    """Wrong options, and CUDA memory on machines that are known to have no GPU."""
    try:
        options = memory_options.parse(spec.options, spec.flags)
    except ValueError as error:
        return Verdict((str(error),))
    if spec.is_on and where.gpu is False and not options.host:
        return Verdict((memory_options.NEEDS_CUDA,))
    return Verdict()


BACKEND = Backend("memory", (SUFFIX, HOST_SUFFIX), check, validate)
