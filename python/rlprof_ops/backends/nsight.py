"""nsys: how a session is launched, started and stopped, which option belongs to which command, and a whole
report.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from rlprof_ops.backends.base import OK, TRUNCATED, Backend, Check, check_not_empty
from rlprof_ops.backends.nsight_presets import LONG as _SAME
from rlprof_ops.backends.nsight_presets import resolve
from rlprof_ops.errors import UsageError

SUFFIX = ".nsys-rep"
RAW_SUFFIX = ".qdstrm"

# `nsys start` takes 0.2 s and `nsys stop` 0.7 s for a small window; a window of gigabytes takes minutes to
# write.
START_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 600.0

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
    ]
)


class NsightSpec(Protocol):
    """The part of a `CaptureSpec` that nsys cares about."""

    @property
    def options(self) -> Mapping[str, str]: ...

    @property
    def flags(self) -> Sequence[str]: ...


@dataclass(frozen=True)
class SplitOptions:
    """One nsys line dealt to the two commands of a session; `left_out` names what a session cannot have."""

    launch: tuple[str, ...]
    start: tuple[str, ...]
    left_out: tuple[str, ...]


def render_option(name: str, value: str) -> list[str]:
    """`t`, `nvtx` -> `-t nvtx`; `backtrace`, `fp` -> `--backtrace=fp` (the rule of Ray's and RLinf's
    options).
    """
    return [f"-{name}", value] if len(name) == 1 else [f"--{name}={value}"]


def render_flag(name: str) -> str:
    """`python-backtrace` -> `--python-backtrace`; one letter takes one dash."""
    return f"-{name}" if len(name) == 1 else f"--{name}"


def has_gpu() -> bool:
    """Whether this machine has an NVIDIA driver, told without loading CUDA."""
    return os.path.exists("/dev/nvidiactl") or os.path.isdir("/proc/driver/nvidia/gpus")


def split_options(spec: NsightSpec | None) -> SplitOptions:
    """Deal the options and flags of `spec` to `nsys launch` and `nsys start`, with defaults for what it
    leaves open.

    An option in neither list goes to `nsys launch`, whose own message then names it. Raises `UsageError` for
    options that contradict each other.
    """
    flags = tuple(spec.flags) if spec else ()
    options = resolve(spec.options, flags) if spec else {}
    named = {_SAME.get(name, name) for name in [*options, *flags]}
    launch: list[str] = []
    start: list[str] = []
    left_out: list[str] = []
    if "trace" not in named:
        launch += ["-t", "cuda,nvtx" if has_gpu() else "nvtx"]
    # CPU sampling and context switches need rights that containers lack, and make nsys slow to start and
    # stop.
    for name in ("sample", "cpuctxsw"):
        if name not in named:
            start.append(f"--{name}=none")
    if "force-overwrite" not in named:  # else nsys writes elsewhere and still exits 0
        start.append("--force-overwrite=true")
    rendered = [(name, render_option(name, str(value))) for name, value in options.items()]
    rendered += [(name, [render_flag(name)]) for name in flags]
    for name, tokens in rendered:
        if name in OURS:
            left_out.append(name)
        elif name in START_OPTIONS:
            start += tokens
        else:
            launch += tokens
    return SplitOptions(tuple(launch), tuple(start), tuple(left_out))


# How a window may be opened from inside instead, by the words of nsys; "none" records the whole life of the
# process.
_RANGES = {"cudaprofilerapi": "cudaProfilerApi", "nvtx": "nvtx", "none": "none"}
# What opens a window with `capture-range: nvtx`. Not in the domain of the phases, or it would be read as one.
NVTX_RANGE, NVTX_DOMAIN = "capture", "rlprof-window"


def capture_range(spec: NsightSpec) -> str | None:
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


def profile_words(spec: NsightSpec, windows: int | None) -> list[str]:
    """The options of `nsys profile` for `windows` windows of one process (None: not known), but for its
    output.

    Sampling and context switches are off unless asked for, as in sessions. `stop` closes for good after one
    window, so more than one need `repeat` (nsys user guide, --capture-range-end).
    """
    opened_by = capture_range(spec)
    options = {
        name: value for name, value in resolve(spec.options, tuple(spec.flags)).items() if name not in OURS
    }
    named = {_SAME.get(name, name) for name in [*options, *spec.flags]}
    words = [] if "trace" in named else ["-t", "cuda,nvtx" if has_gpu() else "nvtx"]
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


def launch_argv(session: str, spec: NsightSpec | None) -> list[str]:
    """`nsys launch …` up to, not including, the program."""
    return [find() or "nsys", "launch", f"--session-new={session}", *split_options(spec).launch]


def start_argv(session: str, output: str | os.PathLike[str], spec: NsightSpec | None) -> list[str]:
    """`nsys start …`: opens a window that will be written to `output`."""
    return [
        find() or "nsys",
        "start",
        f"--session={session}",
        "-o",
        os.fspath(output),
        *split_options(spec).start,
    ]


def stop_argv(session: str) -> list[str]:
    """`nsys stop …`: closes the window within 0.1 s; the report is there when it returns."""
    return [find() or "nsys", "stop", f"--session={session}"]


def list_argv() -> list[str]:
    """`nsys sessions list`: what `session_states` reads."""
    return [find() or "nsys", "sessions", "list"]


def session_states(listing: str) -> dict[str, str]:
    """State by name in the text of `nsys sessions list`, e.g. {"rlprof-4711-policy_worker-r0-12":
    "Collection"}.
    """
    return {
        match["name"]: match["state"] for match in map(_SESSION_LINE.match, listing.splitlines()) if match
    }


def traces_cuda(spec: NsightSpec) -> bool:
    """Whether this capture uses CUPTI, which a process can give to one profiler only."""
    launch = split_options(spec).launch
    for token, following in zip(launch, [*launch[1:], ""], strict=True):
        value = (
            following if token == "-t" else token.partition("=")[2] if token.startswith("--trace=") else ""
        )
        if any(part.strip().startswith(("cuda", "cublas", "cudnn")) for part in value.split(",")):
            return True
    return False


def find(env: Mapping[str, str] | None = None) -> str | None:
    """The nsys to use: `RLPROF_NSYS` when set (even if wrong: it is named in the error), else `nsys` from
    PATH.
    """
    env = os.environ if env is None else env
    chosen = env.get("RLPROF_NSYS")
    if chosen:
        return shutil.which(chosen)
    return shutil.which("nsys", path=env.get("PATH"))


# Columns: id, time, state, launch, name (nsys 2023.4).
_SESSION_LINE = re.compile(r"^\s*\d+\s+\S+\s+(?P<state>\S+)\s+\S+\s+(?P<name>\S+)\s*$")
# States in which what a process does still enters the report (2023.4 says "Collection").
COLLECTING = ("Collection", "Collecting", "DelayedCollection")


def why_missing(env: Mapping[str, str]) -> str:
    """What `find` looked at in vain."""
    chosen = env.get("RLPROF_NSYS")
    return f"RLPROF_NSYS={chosen!r} is no program" if chosen else "it is not on PATH"


_INJECTED = ("NVTX_INJECTION", "CUDA_INJECTION", "QUADD_", "NSYS_")


def client_env(env: Mapping[str, str]) -> dict[str, str]:
    """`env` without what `nsys launch` put into the worker, for nsys commands that the worker itself runs.

    A client that kept them would load the injection libraries and be recorded as part of the training.
    """
    kept = {key: value for key, value in env.items() if not key.startswith(_INJECTED)}
    preload = [
        lib
        for lib in _split_preload(kept.pop("LD_PRELOAD", ""))
        if "ToolsInjection" not in lib and "KeyboardInterceptor" not in lib
    ]
    if preload:
        kept["LD_PRELOAD"] = ":".join(preload)
    return kept


def _split_preload(value: str) -> Iterable[str]:
    return (lib for lib in value.replace(" ", ":").split(":") if lib)


def generated_path(stdout: str, suffix: str = SUFFIX) -> str | None:
    """The report that `nsys stop` says it wrote: nsys exits 0 also when it had to write elsewhere than asked.

    With `RAW_SUFFIX` the raw capture, which is all there is when its own import failed (2023.4 does that now
    and then).
    """
    lines = stdout.splitlines()
    for index, line in enumerate(lines):
        if line.strip() == "Generated:":
            paths = [path.strip() for path in lines[index + 1 :] if path.strip()]
            return next((path for path in paths if path.endswith(suffix)), None)
    return None


def find_importer(env: Mapping[str, str] | None = None) -> Path | None:
    """QdstrmImporter of the nsys in use: it lies beside nsys's real file, in `host-linux-*`, or one or two
    folders up.
    """
    nsys = find(env)
    if nsys is None:
        return None
    here = Path(nsys).resolve().parent
    for folder in (here, here.parent, here.parent.parent):
        for candidate in sorted(folder.glob("host-linux-*/QdstrmImporter")):
            return candidate
        if (folder / "QdstrmImporter").exists():
            return folder / "QdstrmImporter"
    return None


def import_argv(importer: Path, raw: Path, report: Path) -> list[str]:
    """Turns a raw capture into a report."""
    return [str(importer), "-i", str(raw), "-o", str(report)]


_MAGIC = b"NVIDIA Tegra Profiler Report"
_TRAILER = b"[END]"


def check(path: Path) -> Check:
    """Whether an `.nsys-rep` has its first and last bytes (nsys 2022.4 to 2023.4 end a file with "[END]").

    It says nothing of the contents: that takes an export.
    """
    found = check_not_empty(path)
    if found:
        return found
    if path.name.endswith(RAW_SUFFIX):
        return Check(
            TRUNCATED, "raw capture that was not imported yet: run QdstrmImporter or `rlprof harvest`"
        )
    with path.open("rb") as report:
        head = report.read(len(_MAGIC))
        size_bytes = report.seek(0, os.SEEK_END)
        report.seek(max(0, size_bytes - len(_TRAILER)))
        tail = report.read()
    details = {"size_bytes": size_bytes}
    if head != _MAGIC:
        return Check(TRUNCATED, "does not begin like an nsys report", details)
    if tail != _TRAILER:
        return Check(TRUNCATED, "does not end like an nsys report: it was cut while written", details)
    return Check(OK, details=details)


BACKEND = Backend("nsight", (SUFFIX, RAW_SUFFIX), check)
