"""The options of the memory backend, and what it needs of a machine."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from rlprof_ops.backends.contract import Asked, Verdict, Where
from rlprof_ops.words import did_you_mean, truth

SUFFIX, HOST_SUFFIX = ".pickle", ".host-memory.json.gz"
# `stack_depth` is verl's word; torch has no such setting, so it is read and has no effect.
ALLOWED = ("host", "tracemalloc", "interval_ms", "max_entries", "context", "stacks", "stack_depth")
_ALSO = {"trace_alloc_max_entries": "max_entries"}
_CHOICES = {"context": ("all", "alloc", "state", "none"), "stacks": ("python", "all")}

NEEDS_CUDA = (
    "the memory backend records CUDA allocations and needs CUDA, which this machine lacks; "
    "for the memory of the host set `host: true` in the capture's options"
)


@dataclass(frozen=True)
class MemoryOptions:
    """`host`: resident memory of the process instead of CUDA allocations; `tracemalloc`: top lines by growth,
    0 for none.

    CUDA: at most `max_entries` allocations are kept; `stacks` "all" adds C++ frames and makes a snapshot of a
    real training take minutes instead of seconds (torchtitan #3628: 461 s against 4 s).
    """

    host: bool = False
    tracemalloc: int = 0
    interval_ms: int = 100
    max_entries: int = 100_000
    context: str = "all"
    stacks: str = "python"


def parse(options: Mapping[str, Any], flags: Iterable[str] = ()) -> MemoryOptions:
    """Read a request's options and flags.

    Raises:
        ValueError: an unknown name or a value that does not fit, with what is allowed and the nearest name.
    """
    words = {
        name.strip().lower().replace("-", "_"): str(value).strip().lower() for name, value in options.items()
    }
    words.update({flag.strip().lower().replace("-", "_"): "true" for flag in flags})
    found: dict[str, Any] = {}
    for given, value in words.items():
        name = _ALSO.get(given, given)
        if name not in ALLOWED:
            hint = did_you_mean(name, ALLOWED)
            raise ValueError(f"the memory backend has no option {name!r}: it has {', '.join(ALLOWED)}.{hint}")
        if name == "host":
            found[name] = truth(value)
            if found[name] is None:
                raise ValueError(f"memory option host is {value!r}: expected true or false")
        elif name in _CHOICES:
            if value not in _CHOICES[name]:
                raise ValueError(
                    f"memory option {name} is {value!r}: allowed are {', '.join(_CHOICES[name])}"
                )
            found[name] = value
        elif name != "stack_depth":
            found[name] = _number(name, value)
    return MemoryOptions(**found)


def _number(name: str, value: str) -> int:
    if name == "tracemalloc" and value in ("true", "false"):
        return 25 if value == "true" else 0
    least = 0 if name == "tracemalloc" else 1
    if not value.isdecimal() or int(value) < least:
        raise ValueError(f"memory option {name} is {value!r}: expected a whole number from {least}")
    return int(value)


def validate(spec: Asked, where: Where) -> Verdict:
    """Wrong options, and CUDA memory on machines that are known to have no GPU."""
    try:
        options = parse(spec.options, spec.flags)
    except ValueError as error:
        return Verdict((str(error),))
    if spec.is_on and where.gpu is False and not options.host:
        return Verdict((NEEDS_CUDA,))
    return Verdict()
