"""nsys options: which command of a session takes which, what opens a window, and the verdict on a capture."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from rlprof_ops.backends.contract import Asked, Options, Verdict, Where
from rlprof_ops.backends.nsight.gpu_options import suited
from rlprof_ops.backends.nsight.presets import LONG, resolve
from rlprof_ops.backends.window_support import MAX_MB, ON_DEMAND, counts_at_start
from rlprof_ops.errors import UsageError
from rlprof_ops.host.gpus import has_nvidia_driver
from rlprof_ops.words import did_you_mean

NAME, SUFFIX, RAW_SUFFIX, EXPORT_SUFFIX = "nsight", ".nsys-rep", ".qdstrm", ".sqlite"

# Which command of a session takes which option: the `--help` of nsys 2023.4.4 (long and short spellings).
LAUNCH_OPTIONS = frozenset(
    [
        "command-file",
        "cuda-flush-interval",
        "cuda-graph-trace",
        "cuda-memory-usage",
        "cuda-um-cpu-page-faults",
        "cuda-um-gpu-page-faults",
        "cudabacktrace",
        "e",
        "env-var",
        "hotkey-capture",
        "mpi-impl",
        "n",
        "inherit-environment",
        "nvtx-domain-include",
        "nvtx-domain-exclude",
        "opengl-gpu-workload",
        "osrt-backtrace-depth",
        "osrt-backtrace-stack-size",
        "osrt-backtrace-threshold",
        "osrt-threshold",
        "p",
        "nvtx-capture",
        "python-backtrace",
        "python-nvtx-annotations",
        "python-sampling",
        "python-sampling-frequency",
        "resolve-symbols",
        "run-as",
        "t",
        "trace",
        "trace-fork-before-exec",
        "vulkan-gpu-workload",
        "w",
        "show-output",
        "wait",
    ]
)
START_OPTIONS = frozenset(
    [
        "b",
        "backtrace",
        "cpu-core-events",
        "cpuctxsw",
        "event-sample",
        "event-sampling-interval",
        "export",
        "f",
        "force-overwrite",
        "flush-on-cudaprofilerstop",
        "ftrace",
        "ftrace-keep-user-config",
        "gpu-metrics-device",
        "gpu-metrics-devices",
        "gpu-metrics-frequency",
        "gpu-metrics-set",
        "gpu-video-device",
        "gpuctxsw",
        "nic-metrics",
        "os-events",
        "s",
        "sample",
        "samples-per-backtrace",
        "sampling-frequency",
        "sampling-period",
        "stats",
        "x",
        "stop-on-exit",
    ]
)
# A session's window is opened by `start`, named by us and closed by `stop`; these would fight with that.
OURS = frozenset(
    [
        "o",
        "output",
        "c",
        "capture-range",
        "capture-range-end",
        "session",
        "session-new",
        "kill",
        "d",
        "duration",
        "y",
        "delay",
        "Y",
        "start-later",
        "duration-frames",
        "start-frame-index",
        MAX_MB,
    ]
)

_POSITIVE = re.compile(r"(?=.*[1-9])[0-9]*\.?[0-9]+")
_LENGTH = "a window ends with its steps; for one that is open for 20 seconds give the capture `for: 20s`"
_DELAY = "a window begins with its steps; for one 60 seconds later give the capture `at: 60s`"
# Those of nsys whose meaning a request has words for.
TIMES = {"d": _LENGTH, "duration": _LENGTH, "y": _DELAY, "delay": _DELAY}

GPU_METRICS = "--gpu-metrics-"  # how its options begin
# What one session of a node takes of all its GPUs; with `cuda-visible` each takes its own, and `none` is off.
_ALONE = ("cuda-visible", "none")


@dataclass(frozen=True)
class _NoOptions:
    options: Mapping[str, str] = field(default_factory=dict)
    flags: Sequence[str] = ()


NO_OPTIONS = _NoOptions()


@dataclass(frozen=True)
class SplitOptions:
    """One nsys line dealt to the two commands of a session; `left_out` names what a session cannot have,
    `notes` say what this node's GPUs have changed.
    """

    launch: tuple[str, ...]
    start: tuple[str, ...]
    left_out: tuple[str, ...]
    notes: tuple[str, ...] = ()


def samples_the_node(spec: Options) -> bool:
    """Whether a session asks for GPU metrics that only one of a node can have."""
    asked = [
        str(spec.options[name])
        for name in ("gpu-metrics-device", "gpu-metrics-devices")
        if name in spec.options
    ]
    return any(value not in _ALONE for value in asked)


def render_option(name: str, value: str) -> list[str]:
    """`t`, `nvtx` -> `-t nvtx`; `backtrace`, `fp` -> `--backtrace=fp` (the rule of Ray's and RLinf's
    options).
    """
    return [f"-{name}", value] if len(name) == 1 else [f"--{name}={value}"]


def render_flag(name: str) -> str:
    """`python-backtrace` -> `--python-backtrace`; one letter takes one dash."""
    return f"-{name}" if len(name) == 1 else f"--{name}"


def split_flags(options: Mapping[str, str | None]) -> tuple[dict[str, str], tuple[str, ...]]:
    """A trainer's options, with None for one without a value, as `options` and `flags` of a capture."""
    with_value = {name: value for name, value in options.items() if value is not None}
    return with_value, tuple(name for name, value in options.items() if value is None)


def _traced(spec: Options, driver: bool | None, nsys: str) -> tuple[dict[str, str], list[str]]:
    """The options of `spec` and its preset with a trace, and what is said of those that this node's GPUs have
    changed. Raises `UsageError` as `resolve` does.
    """
    given = {LONG.get(name, name) for name in (*spec.options, *spec.flags)}
    options = resolve(spec.options, tuple(spec.flags))
    driver = has_nvidia_driver() if driver is None else driver
    if "trace" not in given | {LONG.get(name, name) for name in options}:
        options = {"t": "cuda,nvtx" if driver else "nvtx", **options}
    return suited(options, given, nsys) if driver and nsys else (options, [])


def split_options(spec: Options | None, driver: bool | None = None, nsys: str = "") -> SplitOptions:
    """Deal the options and flags of `spec` to `nsys launch` and `nsys start`, with defaults for what it
    leaves open.

    `driver`: whether the node has NVIDIA's driver, where it is not this node. `nsys`: the one of this node,
    which its GPUs may want other options of. An option in neither list goes
    to `nsys launch`, whose own message then names it. Raises `UsageError` for options that contradict each
    other.
    """
    spec = spec or NO_OPTIONS
    options, notes = _traced(spec, driver, nsys)
    named = {LONG.get(name, name) for name in (*options, *spec.flags)}
    launch: list[str] = []
    start: list[str] = []
    left_out: list[str] = []
    # CPU sampling and context switches need rights that containers lack, and make nsys slow to start and
    # stop.
    for name in ("sample", "cpuctxsw"):
        if name not in named:
            start.append(f"--{name}=none")
    if "force-overwrite" not in named:  # else nsys writes elsewhere and still exits 0
        start.append("--force-overwrite=true")
    rendered = [(name, render_option(name, str(value))) for name, value in options.items()]
    rendered += [(name, [render_flag(name)]) for name in spec.flags]
    for name, tokens in rendered:
        if name in OURS:
            left_out.append(name)
        elif name in START_OPTIONS:
            start += tokens
        else:
            launch += tokens
    return SplitOptions(tuple(launch), tuple(start), tuple(left_out), tuple(notes))


# How a window may be opened from inside instead, by the words of nsys; "none" records the whole life of the
# process.
CUDA_RANGE = "cudaProfilerApi"
_RANGES = {"cudaprofilerapi": CUDA_RANGE, "nvtx": "nvtx", "none": "none"}
# What opens a window with `capture-range: nvtx`. Not in the domain of the phases, or it would be read as one.
NVTX_RANGE, NVTX_DOMAIN = "capture", "rlprof-window"


def capture_range(spec: Options) -> str | None:
    """What opens windows when the request asks for `nsys profile` instead of a session; None for a session.

    Raises `UsageError` for a word that nsys has not, or that only a person can give (hotkey).
    """
    word = next((str(spec.options[name]) for name in ("c", "capture-range") if name in spec.options), None)
    if word is None:
        return None
    if word.lower() not in _RANGES:
        raise UsageError(
            f"capture-range {word!r}: allowed are {', '.join(_RANGES.values())}; without it windows are"
            " sessions"
        )
    return _RANGES[word.lower()]


def profile_words(spec: Options, windows: int | None, nsys: str = "") -> list[str]:
    """The options of `nsys profile` for `windows` windows of one process (None: not known), but for its
    output. `nsys`: as `split_options` has it.

    Sampling and context switches are off unless asked for, as in sessions. `stop` closes for good after one
    window, so more than one need `repeat` (nsys user guide, --capture-range-end).
    """
    opened_by = capture_range(spec)
    suits, _ = _traced(spec, None, nsys)
    options = {name: value for name, value in suits.items() if name not in OURS}
    named = {LONG.get(name, name) for name in (*options, *spec.flags)}
    words: list[str] = []
    for name in [name for name in options if LONG.get(name, name) == "trace"]:
        words += render_option(name, options.pop(name))
    words += [f"--{name}=none" for name in ("sample", "cpuctxsw") if name not in named]
    if opened_by in ("cudaProfilerApi", "nvtx"):
        end = "repeat" if windows is None else "stop" if windows == 1 else f"repeat:{windows}"
        words += [
            f"--capture-range={opened_by}",
            f"--capture-range-end={spec.options.get('capture-range-end', end)}",
        ]
    if opened_by == "nvtx" and "nvtx-capture" not in named:
        words.append(f"--nvtx-capture={NVTX_RANGE}@{NVTX_DOMAIN}")
    for name, value in options.items():
        words += render_option(name, value)
    return words + [render_flag(name) for name in spec.flags if name not in OURS]


# Why a session has no window of a phase: from outside only steps are known.
PHASES_NEED = (
    "each: phase: a worker opens these windows itself, so its own process has to tell its phases, by our"
    " runtime or as tasks that its trainer's adapter marks; one that tells none, or whose children alone do"
    " (the engine of a vLLM server), has no report: at: <phase>, without each, opens its window at a phase of"
    " the process that leads the steps"
)

_ENDS = re.compile(r"none|stop(-shutdown)?|repeat(:[1-9][0-9]*)?|repeat-shutdown:[1-9][0-9]*", re.ASCII)
# Names that a trainer understands and translates before nsys sees them.
_TRANSLATED = {"rlinf": ("stop-on-range-end",)}


def validate(spec: Asked, where: Where) -> Verdict:
    """What nsys and we say about the options of one capture. A trainer gives its window options to nsys
    itself, so there they all count.
    """
    errors, warnings = [], []
    opened_by = None
    try:
        resolved = resolve(spec.options, tuple(spec.flags))
        if where.driver == ON_DEMAND:  # such a window is an `nsys start` in a session that runs
            names = (*resolved, *spec.flags)
            return Verdict(
                tuple(counts_at_start(name) for name in names if name not in (*START_OPTIONS, MAX_MB))
            )
        opened_by = capture_range(spec)
    except UsageError as error:
        errors.append(str(error))
    if opened_by and spec.part is not None:
        errors.append(
            f"capture-range {opened_by}: the process opens these windows itself, so they cannot be parts of a"
            " step; leave capture-range out, for a session, or at and for"
        )
    if not _POSITIVE.fullmatch(str(spec.options.get(MAX_MB, "1"))):
        errors.append(f"{MAX_MB} is {spec.options[MAX_MB]!r}: expected a number of MB above 0")
    elif MAX_MB in spec.options and (whose := f"capture-range {opened_by}" if opened_by else where.trainer):
        errors.append(f"{MAX_MB} closes windows of our sessions, not those of {whose}; leave it out")
    if opened_by == "none" and not where.trainer and (spec.each == "phase" or len(spec.windows()) > 1):
        errors.append(
            "capture-range none: the whole life of a worker is one report, so it takes one range of steps and"
            " each: step; leave capture-range out for sessions, which take several"
        )
    end = str(spec.options.get("capture-range-end", "stop"))
    if not _ENDS.fullmatch(end):
        errors.append(
            f"capture-range-end {end!r}: allowed are none, stop, stop-shutdown, repeat, repeat:N and"
            " repeat-shutdown:N"
        )
    known = sorted(LAUNCH_OPTIONS | START_OPTIONS | OURS)
    counts = ("c", "capture-range", MAX_MB, *(("capture-range-end",) if opened_by else ()))
    for name in (*spec.options, *spec.flags):
        if name in _TRANSLATED.get(where.trainer, ()) or name == "preset":
            continue
        if name not in known:
            warnings.append(f"nsys 2023.4 has no option {name!r}.{did_you_mean(name, known)}")
        elif name in TIMES and not where.trainer:
            errors.append(f"option {name!r} is not taken: {TIMES[name]}")
        elif name in OURS and name not in counts and not where.trainer:
            why = (
                "windows are sessions, unless capture-range is given"
                if name == "capture-range-end"
                else "steps and output_dir decide it"
            )
            warnings.append(f"option {name!r} has no effect: {why}")
    if spec.each == "phase" and not opened_by and not where.trainer:
        warnings.append(PHASES_NEED)
    if opened_by and not where.trainer and not errors:
        opener = {
            "cudaProfilerApi": "a window is cudaProfilerStart to Stop",
            "nvtx": "a window is an NVTX range",
            "none": "the whole life of a worker is recorded",
        }[opened_by]
        warnings.append(
            f"capture-range {opened_by}: {opener}, under `nsys profile`; reports come when the worker ends"
        )
    return Verdict(tuple(errors), tuple(warnings))
