"""torch.profiler traces: whether one is whole."""

from __future__ import annotations

import gzip
import os
import zlib
from pathlib import Path

from rlprof_ops.backends.contract import EMPTY, OK, TRUNCATED, Check, check_not_empty

GPUS_KEY = "rlprof_gpus"  # in the header of a trace: {device as the process counts: UUID}

_CHUNK_BYTES = 1 << 20
_BOMB_BYTES, _BOMB_RATIO = 1 << 30, 400  # traces inflate thirty times


def check(path: Path) -> Check:
    """Inflate once, in constant memory: a job that was killed leaves a gzip without its end, or half a
    JSON object.
    """
    found = check_not_empty(path)
    if found:
        return found
    size_bytes = path.stat().st_size
    events = False
    inflated_bytes = 0
    tail = b""
    try:
        with gzip.open(path, "rb") if path.name.endswith(".gz") else path.open("rb") as trace:
            while chunk := trace.read(_CHUNK_BYTES):
                inflated_bytes += len(chunk)
                if inflated_bytes > max(_BOMB_BYTES, _BOMB_RATIO * size_bytes):
                    reason = f"it inflates to more than {_BOMB_RATIO} times its size: no trace does"
                    return Check(TRUNCATED, reason, {"size_bytes": size_bytes})
                if not events:
                    events = _has_event(tail + chunk)
                tail = (tail + chunk)[-4096:]
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        return Check(TRUNCATED, f"the gzip stream is cut or damaged ({error})", {"size_bytes": size_bytes})
    except OSError as error:
        return Check(TRUNCATED, f"cannot be read: {error.strerror or error}", {"size_bytes": size_bytes})
    details = {"size_bytes": size_bytes, "inflated_bytes": inflated_bytes}
    if not tail.rstrip().endswith((b"}", b"]")):  # an object, or the bare array of events that is legal too
        return Check(TRUNCATED, "the JSON does not end: it was cut while written", details)
    if not events:
        return Check(EMPTY, "no trace event in it", details)
    return Check(OK, details=details)


def _has_event(text: bytes) -> bool:
    # Every event has a phase key; the metadata before `traceEvents` has none. Both spacings are in the wild.
    return b'"ph":' in text or b'"ph" :' in text


def has_cuda_activity() -> bool:
    """Whether torch is there and would record CUDA, told without loading torch when no driver is."""
    if not os.path.exists("/dev/nvidiactl"):
        return False
    import torch

    return bool(torch.cuda.is_available())
