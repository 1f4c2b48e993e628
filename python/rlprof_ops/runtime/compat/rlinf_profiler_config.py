"""The parameters of RLinf's `PyTorchProfiler`, the section `megatron.profiler` of its YAML, checked before
anything runs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from typing import Any

from rlprof_ops.backends import report_names
from rlprof_ops.words import did_you_mean


@dataclass(frozen=True)
class PyTorchProfilerConfig:
    """The section `megatron.profiler` of RLinf's YAML; order and defaults are those of its constructor.

    `schedule_repeat` 0: no end, as `torch.profiler.schedule` has it.

    Raises ValueError for values that do not fit.
    """

    output_dir: str = "./profiler_output"
    activities: tuple[str, ...] = ("cpu", "cuda")
    schedule_warmup: int = 1
    schedule_active: int = 3
    schedule_repeat: int = 2
    record_shapes: bool = False
    profile_memory: bool = True
    with_stack: bool = False
    with_flops: bool = True
    with_modules: bool = False
    export_tensorboard: bool = True
    export_chrome_trace: bool = True
    chrome_filename_prefix: str = "chrome_trace"

    def __post_init__(self) -> None:
        problems = list(_problems(self))
        if problems:
            raise ValueError("; ".join(problems))


def _problems(config: PyTorchProfilerConfig) -> Iterator[str]:
    for name, least in (("schedule_warmup", 0), ("schedule_active", 1), ("schedule_repeat", 0)):
        value = getattr(config, name)
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            yield f"{name} is {value!r}: expected a whole number from {least}"
    for field in fields(config):
        if field.type == "bool" and not isinstance(getattr(config, field.name), bool):
            yield f"{field.name} is {getattr(config, field.name)!r}: expected true or false"
    for activity in config.activities:
        if str(activity).lower() not in ("cpu", "cuda"):
            hint = did_you_mean(str(activity), ("cpu", "cuda"))
            yield f"activities has {activity!r}: allowed are cpu and cuda.{hint}"
    if not config.activities:
        yield "activities is empty: allowed are cpu and cuda"
    prefix = config.chrome_filename_prefix
    if not isinstance(prefix, str) or not prefix or report_names.safe_worker(prefix) != prefix:
        yield f"chrome_filename_prefix is {prefix!r}: expected letters, digits and . _ - only"


def checked(config: object) -> dict[str, Any]:
    """The section as parameters; it must hold every one of them and nothing else.

    Raises:
        ValueError: missing and unknown parameters, or `schedule_wait`, which is computed.
    """
    allowed = [field.name for field in fields(PyTorchProfilerConfig)]
    if not isinstance(config, Mapping):
        raise ValueError(
            f"the profiler's configuration is {config!r}: expected a mapping with {', '.join(allowed)}"
        )
    given = dict(config)
    problems = []
    missing = [name for name in allowed if name not in given]
    if missing:
        problems.append(f"Missing required profiler parameters: {', '.join(missing)}")
    if "schedule_wait" in given:
        problems.append("schedule_wait is computed at runtime from the number of minibatches: remove it")
    for name in given:
        if name not in allowed and name != "schedule_wait":
            problems.append(f"Unknown profiler parameter {name!r}.{did_you_mean(str(name), allowed)}")
    if problems:
        raise ValueError("; ".join(problems))
    return given
