"""Which files of a node folder go where in the run folder, and how each kind may be copied."""

from __future__ import annotations

import enum
import os
import re
from dataclasses import dataclass

from rlprof_ops import backends
from rlprof_ops.backends import report_names
from rlprof_ops.host.contained_dir import safe_component
from rlprof_ops.runtime.on_demand.torch_fr import FOLDER as TORCH_FR
from rlprof_ops.runtime.request_log import FOLDER as REQUESTS

# Files that a profiler writes in place and that only count when nobody writes them any more (Ray's own nsight
# folder).
_WRITTEN_IN_PLACE = (".nsys-rep", ".qdrep", ".sqlite", ".proto", ".pickle", ".json.gz", ".rpd", ".db")
# Raw captures: worth carrying only at the very end, when the node could not turn them into reports itself.
RAW_CAPTURE = ".qdstrm"
SESSION = re.compile(r"session_\d")
TORCH_FR_MIB = 200  # of a job, for the dumps of torch's flight recorder


class Kind(enum.Enum):
    """How a file behaves while it is being copied."""

    FINISHED = "finished"  # complete by rename: copy once
    STABLE = (
        "stable"  # written in place: copy once it has stopped changing and nobody has it open for writing
    )
    GROWING = "growing"  # a log: append its new tail
    LINES = "lines"  # a log read by machines: append whole lines only
    BLOCKS = "blocks"  # the recorder's own binary: append its new blocks, byte by byte
    FINAL = "final"  # rewritten as a whole all the time: the last pass brings its last state
    REWRITTEN = "rewritten"  # a few bytes overwritten in place: the last pass brings them


GROWS = frozenset({Kind.GROWING, Kind.LINES, Kind.BLOCKS})


@dataclass(frozen=True)
class Route:
    """One folder below the node folder and the folder below the run folder it maps to. Of `most_bytes` the
    oldest files go; None: all.
    """

    source: str
    target: str
    kind: Kind
    last_pass_only: bool = False
    most_bytes: int | None = None


@dataclass(frozen=True)
class Item:
    """A file to look at: where it is below the node folder, where it goes below the run folder, its stat."""

    source: str
    target: str
    kind: Kind
    found: os.stat_result


_PROFILES = Route("profiles", "profiles", Kind.FINISHED)


def goes_home(path: str) -> bool:
    """Whether `path` of a node folder is a finished file of the profiles tree, which the run folder has to
    get.
    """
    folder, _, relative = path.partition("/")
    return (
        folder == _PROFILES.source and kind_of(_PROFILES, relative) is not None and not are_columns(relative)
    )


def is_dump(path: str) -> bool:
    """Whether `path` of a node folder is a dump of torch's flight recorder."""
    return path.startswith(f"{TORCH_FR}/") and not path.rpartition("/")[2].startswith(".")


def are_columns(path: str) -> bool:
    """Whether a file holds the columns of the report beside it, which can always be made again."""
    return bool(report_names.report_of_columns(path.rsplit("/", 1)[-1]))


def is_report_like(path: str) -> bool:
    """Whether a file of a node folder can be a report or a raw capture.

    Not what Ray has unpacked of the user's own files, and nothing below a name that begins with a dot, which
    is on its way to its true name.
    """
    parts = path.split("/")
    unpacked = parts[0] == "ray" and "runtime_resources" in parts[1:3]
    return backends.is_report(path) and not unpacked and not any(part[0] == "." for part in parts)


def routes_of(node: str, sessions: tuple[str, ...], nodes: int = 1) -> tuple[Route, ...]:
    """The routes of one node, the most precious first; `sessions` are the folder names below `ray/`, `nodes`
    how many the job has.
    """
    safe_component(node, "node name")
    dumps_bytes = (TORCH_FR_MIB << 20) // max(1, nodes)
    own = (
        Route("events", f"nodes/{node}/events", Kind.LINES),
        Route("record", f"nodes/{node}/record", Kind.BLOCKS),
        Route(REQUESTS, f"nodes/{node}/{REQUESTS}", Kind.LINES),
        Route(TORCH_FR, f"nodes/{node}/{TORCH_FR}", Kind.STABLE, most_bytes=dumps_bytes),
        _PROFILES,
        Route("inplace", "profiles", Kind.STABLE),
        Route("tmp", f"nodes/{node}/tmp", Kind.STABLE, last_pass_only=True),
        Route("logs", f"logs/{node}", Kind.GROWING),
        Route("live", "logs", Kind.GROWING, last_pass_only=True),  # until then: live_logs.py
    )
    ray = tuple(
        Route(f"ray/{name}/logs", f"ray/{node}/{name}/logs", Kind.GROWING)
        for name in sorted(sessions)
        if SESSION.match(name)
    )
    return own + ray


def kind_of(route: Route, relative: str) -> Kind | None:
    """How to copy the file `relative` (below `route.source`); None when it stays on the node."""
    name = relative.rsplit("/", 1)[-1]
    if backends.is_secret(f"{route.source}/{relative}"):
        return None
    if route.source == "inplace":
        return Kind.STABLE if name.endswith(_WRITTEN_IN_PLACE) and not name.startswith(".") else None
    if route.source == TORCH_FR:  # ours come by rename, torch's do not
        return None if name.startswith(".") else Kind.FINISHED if name.endswith(".pickle") else Kind.STABLE
    if route.source == "tmp":
        return Kind.STABLE if is_report_like(relative) else None
    if route.kind is Kind.FINISHED:
        if are_columns(name):
            return Kind.FINISHED
        return None if name.startswith(".") or name.endswith((".tmp", ".part")) else Kind.FINISHED
    if route.kind is Kind.BLOCKS:  # the rows since the last block count when no block will be made of them
        return Kind.BLOCKS if name == "record.bin" else Kind.FINAL
    if route.kind is Kind.LINES:
        return Kind.REWRITTEN if name.endswith(".step") else Kind.LINES
    if route.source.startswith("ray/"):
        if name.startswith("debug_state"):  # the raylet writes it anew every few seconds
            return Kind.FINAL
        if name.endswith(RAW_CAPTURE):
            return Kind.STABLE
        if name.endswith(_WRITTEN_IN_PLACE):
            return Kind.STABLE
    return route.kind
