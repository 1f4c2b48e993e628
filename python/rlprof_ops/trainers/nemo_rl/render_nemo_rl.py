"""A request as NeMo RL's `NRL_NSYS_*` and `NRL_TORCH_PROFILE_*` variables."""

from __future__ import annotations

import json
import shlex
from fnmatch import fnmatchcase

from rlprof_ops import env_names
from rlprof_ops.backends.contract import LEADERS
from rlprof_ops.backends.nsight.presets import resolve
from rlprof_ops.request import CaptureSpec, ProfileRequest, Steps, Window
from rlprof_ops.request.selectors import is_pattern
from rlprof_ops.trainers.dialects import Remarks, Rendered, WorkerKind, common_losses, select, usable
from rlprof_ops.trainers.nemo_rl.nemo_rl_names import (
    LD_LIBRARY_PATH,
    NO_END,
    RAY_LOG_SYNC_FREQUENCY_S,
    TORCH_WORKERS,
    WORKERS,
)


def render(request: ProfileRequest, fmt: str = "env") -> Rendered:
    """The variables as `export` lines."""
    remarks = Remarks()
    if not request.enabled:
        remarks.lose(
            "enabled: false; NeMo RL is off only when its variables are not set, so none are written"
        )
        return remarks.rendered("NeMo RL variables", "")
    lines: list[str] = []
    done: set[str] = set()
    for number, spec in usable(request, remarks):
        if not spec.steps:
            remarks.lose(
                f"capture {number} has no steps and is left out: NeMo RL is off when its variables are"
                " not set"
            )
        elif spec.backend not in ("nsight", "torch"):
            remarks.lose(f"capture {number}: NeMo RL has no {spec.backend}")
        elif spec.backend in done:
            remarks.lose(f"capture {number} is left out: NeMo RL takes one {spec.backend} capture")
        else:
            done.add(spec.backend)
            lines += _lines(number, spec, remarks)
    if "nsight" in done:
        lines.append(f"export RAY_LOG_SYNC_FREQUENCY={RAY_LOG_SYNC_FREQUENCY_S}")
        remarks.note("RAY_LOG_SYNC_FREQUENCY is for NeMo RL's own ray.sub; rlprof's copies reports by itself")
    if request.folder("nsight") is not None and "nsight" in done:
        remarks.lose("output_dir for nsight; its reports stay in /tmp/ray/session_*/logs/nsight of each node")
    if (folder := request.folder("torch")) is not None and "torch" in done:
        lines.append(f"export {env_names.NRL_FOLDER['torch']}={shlex.quote(folder)}")
    return remarks.rendered("NeMo RL variables", "".join(line + "\n" for line in lines))


def _lines(number: int, spec: CaptureSpec, remarks: Remarks) -> list[str]:
    workers = [w for w in WORKERS if spec.backend == "nsight" or w.name in TORCH_WORKERS]
    patterns = _patterns(spec, workers, remarks)
    if spec.backend == "torch" and patterns and not any(map(spec.matches, LEADERS)):
        remarks.note("NeMo RL's torch profiler records its controller too, whatever the patterns")
    if not patterns:
        return []
    lines = [
        f"export {env_names.NRL_WORKER_PATTERNS[spec.backend]}={shlex.quote(','.join(patterns))}",
        f"export {env_names.NRL_STEP_RANGE[spec.backend]}={_range(number, spec.steps, remarks)}",
    ]
    if spec.ranks is not None:
        remarks.lose(f"capture {number}: ranks; NeMo RL profiles every rank of a matched worker")
    if spec.each == "phase":
        remarks.lose(f"capture {number}: each: phase; NeMo RL writes one report for the whole range")
    if spec.flags:
        remarks.lose(f"capture {number}: flags {', '.join(spec.flags)}; NeMo RL's options need a value")
    common_losses(number, spec, "NeMo RL", remarks)
    if spec.backend == "torch":
        remarks.note("NRL_TORCH_PROFILE_* exist on NeMo RL's branch guyueh/torch_profiler only, not on main")
        if any(fnmatchcase("vllm_generation_worker", p) for p in patterns):
            remarks.note(
                "vLLM's own profiler records no CUDA events (NeMo RL's torch profiler document): take nsight"
                " for those, and not both at once"
            )
        if spec.options:
            remarks.lose(
                f"capture {number}: options {', '.join(spec.options)}; NeMo RL's torch profiler has none"
            )
    elif spec.options:
        lines.append(f"export NRL_NSYS_EXTRA_OPTIONS={shlex.quote(json.dumps(_options(spec)))}")
    if spec.backend == "nsight":
        lines += _library_path(patterns, remarks)
    for worker in workers:
        if (
            worker.note
            and any(fnmatchcase(worker.name, p) for p in patterns)
            and "LD_LIBRARY" not in worker.note
        ):
            remarks.note(f"{worker.name}: {worker.note}")
    return lines


# NeMo RL's own options use these names (get_nsight_config_if_pattern_matches): the long ones beside them
# would be given twice.
_SHORT = {"trace": "t", "sample": "s", "output": "o", "x": "stop-on-exit", "c": "capture-range"}


def _options(spec: CaptureSpec) -> dict[str, str]:
    return {_SHORT.get(name, name): value for name, value in resolve(spec.options, spec.flags).items()}


def _patterns(spec: CaptureSpec, workers: list[WorkerKind], remarks: Remarks) -> list[str]:
    """Patterns as written where they match NeMo RL's names, its names where they are ours."""
    found: list[str] = []
    for pattern in spec.workers:
        if any(fnmatchcase(w.name, pattern) for w in workers):
            found.append(pattern)
        elif spec.backend != "torch" or pattern not in LEADERS:  # it is recorded unasked
            found += select([pattern], workers, "NeMo RL", remarks)
    return list(dict.fromkeys(found))


def _range(number: int, steps: Steps, remarks: Remarks) -> str:
    window = steps.runs[0]
    if len(steps.runs) > 1:
        rest = Steps(steps.runs[1:])
        remarks.lose(f"capture {number}: steps '{rest}'; NeMo RL takes one range, the first is written")
    if window.stop is None:
        remarks.lose(f"capture {number}: the open range '{window}' is written with the end {NO_END}")
        window = Window(window.start, NO_END)
    return f"{window.start}:{window.stop}"


def _library_path(patterns: list[str], remarks: Remarks) -> list[str]:
    line = f"export LD_LIBRARY_PATH={shlex.quote(LD_LIBRARY_PATH)}"
    matched = [p for p in patterns if any(fnmatchcase(w.name, p) for w in WORKERS if "megatron" in w.name)]
    if not matched:
        return []
    remarks.note(
        "LD_LIBRARY_PATH is for x86-64, and must be set inside COMMAND when the container has a value of"
        " its own"
    )
    if all(is_pattern(p) and "megatron" not in p for p in matched):
        return [f"# only for a Megatron policy: {line}"]
    return [line]
