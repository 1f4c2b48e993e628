"""Names of report files, both ways: what our runtime writes, and what other trainers leave behind."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import PurePosixPath

OPEN_END = "end"

_UNSAFE = re.compile(r"[^A-Za-z0-9.-]")
_UNSAFE_IN_WORKER = re.compile(r"[^A-Za-z0-9._-]")

# How reports of the backends here end, and what trainers and tools make beside them; a longer ending stands
# before one that it ends in, so that a name is split at the right dot.
SUFFIXES = (
    ".pt.trace.json.gz",
    ".pt.trace.json",
    ".host-memory.json.gz",
    ".nsys-rep",
    ".json.gz",
    ".qdstrm",
    ".pickle",
    ".sqlite",
    ".proto",
)


@dataclass(frozen=True)
class ReportName:
    """What a file name says. `stop` is exclusive, None for an open end or when the name does not tell.

    `kind` is who named it: rlprof, nemo_rl, vllm, verl, rlinf, ray, torch (TensorBoard's handler) or nsys
    (its fallback). `trigger` is what opened the window by itself. Fields that a foreign name does not carry
    are None.
    """

    kind: str
    suffix: str
    worker: str | None = None
    rank: int | None = None
    start: int | None = None
    stop: int | None = None
    phase: str | None = None
    host: str | None = None
    pid: int | None = None
    ordinal: int | None = None
    trigger: str | None = None


@dataclass(frozen=True)
class StepsNamed:
    """The half-open window that a name speaks of; `stop` None for an open end."""

    start: int
    stop: int | None


def safe(text: str) -> str:
    """`text` as one part of a file name: every character outside [A-Za-z0-9.-] becomes "-", no leading
    dot.
    """
    return _hide_no_dot(_UNSAFE.sub("-", text))


def safe_worker(text: str) -> str:
    """Like `safe`, but a worker name keeps its underscores (they are in every trainer's worker names)."""
    return _hide_no_dot(_UNSAFE_IN_WORKER.sub("-", text))


def _hide_no_dot(text: str) -> str:
    if not text:
        raise ValueError("a part of a report name is empty")
    # "." and ".." are folders and a leading dot hides a file from the collector's eyes.
    return re.sub(r"^\.+", lambda dots: "-" * len(dots.group()), text)


def steps_label(start: int, stop: int | None) -> str:
    """`step3-4` for the half-open window 3:5; `step3-end` when it is open."""
    return f"step{start}-{OPEN_END if stop is None else stop - 1}"


def triggered_id(why: str, step: int, number: int) -> str:
    """The id of a capture that took itself, for instance when-slow_rank-step15-1; `number` is its place in
    the request.
    """
    word = re.sub(r"[^A-Za-z0-9_]+", "_", why)[:60] or "it"
    return f"when-{word}-step{step}-{number}"


def trigger_of(asked_by: str | None) -> str | None:
    """What opened the capture of this id by itself; None for one that somebody asked for."""
    found = _TRIGGERED.fullmatch(asked_by or "")
    return found["why"] if found else None


def trigger_number(asked_by: str) -> int | None:
    """The place in the request, from 1, of the capture that has this id; None for one that somebody asked
    for.
    """
    found = _TRIGGERED.fullmatch(asked_by)
    return int(found["number"]) if found else None


def report_name(
    worker: str,
    rank: int | None,
    window: object,
    phase: str | None,
    host: str,
    pid: int,
    suffix: str,
    asked_by: str | None = None,
) -> str:
    """The file name of one report. `window` has `start` and half-open `stop` (None: open); `suffix` keeps its
    dot; `asked_by` is the id of a capture on demand, whose trigger is named.

    No rank counts as rank 0, as in the folders of docs/contracts.md.
    """
    start: int = window.start  # type: ignore[attr-defined]
    stop: int | None = window.stop  # type: ignore[attr-defined]
    parts = [safe_worker(worker), f"rank{rank or 0}", steps_label(start, stop)]
    trigger = trigger_of(asked_by)
    if trigger:
        parts.append(f"when-{safe(trigger)}")
    if phase:
        parts.append(safe(phase))
    return "_".join([*parts, safe(host), str(pid)]) + suffix


def process_report_stem(
    worker: str | None, rank: int | None, window: object | None, host: str, pid: str
) -> str:
    """The name, without suffix, of a report that a profiler writes when the process ends; `pid` is the tool's
    own word for it.

    `window` is None when the tool decides what is recorded.
    """
    parts = [safe_worker(worker or NAMELESS), f"rank{rank or 0}"]
    if window is not None:
        parts.append(steps_label(window.start, window.stop))  # type: ignore[attr-defined]
    return "_".join([*parts, safe(host), pid])


def window_key(
    backend: str | None, worker: str | None, rank: int | None, start: int | None, phase: str | None
) -> tuple[str | None, str | None, int | None, int | None, str | None]:
    """What a planned capture and its report have in common, however much of each name the file could keep."""
    return backend, safe_worker(worker) if worker else None, rank, start, safe(phase) if phase else None


def report_folder(backend: str, worker: str, rank: int | None) -> PurePosixPath:
    """Where a report belongs, relative to a node folder or a run folder."""
    return PurePosixPath("profiles", backend, safe_worker(worker), f"rank{rank or 0}")


def process_name(worker: str, rank: int | None, host: str, pid: int) -> str:
    """The stem of a process's own files (events, step): `<worker>_rank<R>_<host>_<pid>`."""
    return f"{safe_worker(worker)}_rank{rank or 0}_{safe(host)}_{pid}"


_TRIGGERED = re.compile(r"when-(?P<why>[A-Za-z0-9_]+)-step\d+-(?P<number>\d{1,9})")
# Without steps: a profiler that writes at the end of the process, or one report a range ("….2.nsys-rep").
_OURS = re.compile(
    r"(?P<worker>[A-Za-z0-9._-]+?)_rank(?P<rank>\d+)(?:_step(?P<start>\d+)-(?P<last>\d+|end)"
    r"(?:_when-(?P<trigger>[A-Za-z0-9.-]+))?(?:_(?P<phase>[A-Za-z0-9.-]+))?)?_(?P<host>[A-Za-z0-9.-]+)_(?P<pid>\d+)(?:\.(?P<ordinal>\d+))?"
)
# rocprof-sys puts our name before its own: "<ours>_perfetto-trace.proto" (with "-<pid>" when USE_PID is on).
_ROCPROF_TAIL = re.compile(r"_?perfetto-trace(?:-\d+)?$")
# What a process is called whose worker nobody told.
NAMELESS = "worker_process"
# The orders matter: the first that matches the stem wins.
_FOREIGN: tuple[tuple[str, re.Pattern[str]], ...] = (
    # NeMo RL: '<worker>_<start>:<stop>_%p' (nemo_rl/distributed/worker_group_utils.py); its vLLM inner
    # workers too.
    (
        "vllm",
        re.compile(
            r"(?P<worker>vllm_tp_worker)_(?P<start>\d+):(?P<stop>\d+)_(?P<pid>\d+)(?:\.(?P<ordinal>\d+))?"
        ),
    ),
    (
        "nemo_rl",
        re.compile(r"(?P<worker>\w+?)_(?P<start>\d+):(?P<stop>\d+)_(?P<pid>\d+)(?:\.(?P<ordinal>\d+))?"),
    ),
    # RLinf: rlinf_profile_<group>_<rank>_%p
    (
        "rlinf",
        re.compile(
            r"rlinf_profile_(?P<worker>[A-Za-z0-9._-]+?)_(?P<rank>\d+)_(?P<pid>\d+)(?:\.(?P<ordinal>\d+))?"
        ),
    ),
    # Ray's default for its nsight plugin, and verl's with `repeat-shutdown` (one ordinal a range).
    ("ray", re.compile(r"'?worker_process_(?P<pid>\d+)'?(?:\.(?P<ordinal>\d+))?")),
    # verl: prof_rank-<rank>.json.gz and torch_memory_rank<rank>_pid<pid>.pickle
    ("verl", re.compile(r"prof_rank-(?P<rank>\d+)")),
    (
        "verl",
        re.compile(r"(?:post_update_step(?P<start>\d+)_rank|torch_memory_rank)(?P<rank>\d+)_pid(?P<pid>\d+)"),
    ),
    # nsys, when the target existed or its folder was missing.
    ("nsys", re.compile(r"nsys-report-[0-9A-Za-z]+(?:-[0-9A-Za-z-]+)?")),
    # torch.profiler.tensorboard_trace_handler: <host>_<pid>.<timestamp>.pt.trace.json[.gz]
    ("torch", re.compile(r"(?P<host>[A-Za-z0-9.-]+)_(?P<pid>\d+)\.(?P<ordinal>\d+)")),
)


def parse(filename: str) -> ReportName | None:
    """What `filename` (a name, not a path) tells; None when it is no report's name."""
    suffix = next((known for known in SUFFIXES if filename.endswith(known)), None)
    if suffix is None:
        return None
    stem = filename[: -len(suffix)]
    if suffix == ".proto":
        stem = _ROCPROF_TAIL.sub("", stem)
    ours = _OURS.fullmatch(stem)
    if ours:
        return _own(suffix, ours)
    for kind, pattern in _FOREIGN:
        match = pattern.fullmatch(stem)
        if match:
            return _foreign(kind, suffix, match.groupdict())
    return None


def _own(suffix: str, ours: re.Match[str]) -> ReportName:
    last, nameless = ours["last"], ours["worker"] == NAMELESS
    return ReportName(
        "ray" if nameless else "rlprof",
        suffix,
        worker=None if nameless else ours["worker"],
        rank=int(ours["rank"]),
        start=None if last is None else int(ours["start"]),
        stop=None if last in (None, OPEN_END) else int(last) + 1,
        phase=ours["phase"],
        host=ours["host"],
        pid=int(ours["pid"]),
        ordinal=int(ours["ordinal"]) if ours["ordinal"] else None,
        trigger=ours["trigger"],
    )


def _foreign(kind: str, suffix: str, found: dict[str, str | None]) -> ReportName:
    def number(key: str) -> int | None:
        value = found.get(key)
        return None if value is None else int(value)

    return ReportName(
        kind,
        suffix,
        worker=found.get("worker"),
        rank=number("rank"),
        start=number("start"),
        stop=number("stop"),
        host=found.get("host"),
        pid=number("pid"),
        ordinal=number("ordinal"),
    )


_COLUMNS = (".", ".columns.parquet")


def columns_of(report: str) -> str:
    """The name of the file beside a report that holds its columns (analyze/readers/cache.py)."""
    return f"{_COLUMNS[0]}{report}{_COLUMNS[1]}"


def report_of_columns(name: str) -> str:
    """The report whose columns a file of this name holds; "" where it is no such file."""
    held = name.startswith(_COLUMNS[0]) and name.endswith(_COLUMNS[1])
    return name[len(_COLUMNS[0]) : -len(_COLUMNS[1])] if held else ""
