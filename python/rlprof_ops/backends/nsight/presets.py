"""What NeMo RL, verl and RLinf give nsys when nobody says anything, by name: `options: {preset: verl}`."""

from __future__ import annotations

from collections.abc import Mapping

from rlprof_ops.errors import UsageError
from rlprof_ops.words import did_you_mean

# Without what decides windows and names: here the plan does.
PRESETS: Mapping[str, Mapping[str, str]] = {
    # nemo_rl/distributed/worker_group_utils.py, get_nsight_config_if_pattern_matches
    "nemo_rl": {"trace": "cuda,nvtx", "sample": "none", "cuda-graph-trace": "node"},
    # verl/trainer/config, worker_nsight_options
    "verl": {"trace": "cuda,nvtx,cublas,ucx", "cuda-memory-usage": "true", "cuda-graph-trace": "graph"},
    # examples/embodiment/config/profile/default.yaml
    "rlinf": {
        "trace": "cuda,cudnn,cublas,nvtx,osrt",
        "sample": "process-tree",
        "cpuctxsw": "process-tree",
        "cudabacktrace": "all",
        "osrt-threshold": "1000",
    },
}  # fmt: skip
# One-letter names of nsys, and what they are short for (`nsys profile --help`, 2023.4).
LONG = {
    "t": "trace",
    "s": "sample",
    "b": "backtrace",
    "x": "stop-on-exit",
    "f": "force-overwrite",
    "w": "show-output",
    "o": "output",
    "c": "capture-range",
    "d": "duration",
    "y": "delay",
    "e": "env-var",
    "n": "inherit-environment",
    "p": "nvtx-capture",
}


def resolve(options: Mapping[str, str], flags: tuple[str, ...] = ()) -> dict[str, str]:
    """The options with those of their preset, theirs first; spelt as they were given.

    Raises `UsageError` for an unknown preset, and for an option that is given under both of its names.
    """
    given = {name: str(value) for name, value in options.items() if name != "preset"}
    seen: dict[str, str] = {}
    for name in [*given, *flags]:
        other = seen.setdefault(LONG.get(name, name), name)
        if other != name:
            raise UsageError(f"the nsys options {other!r} and {name!r} are the same one; keep one")
    if "preset" not in options:
        return given
    preset = str(options["preset"])
    if preset not in PRESETS:
        hint = did_you_mean(preset, PRESETS)
        raise UsageError(f"unknown nsys preset {preset!r}: there are {', '.join(PRESETS)}.{hint}")
    return {**{name: value for name, value in PRESETS[preset].items() if name not in seen}, **given}
