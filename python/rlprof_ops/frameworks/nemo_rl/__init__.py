"""NeMo RL: `NRL_NSYS_*` and `NRL_TORCH_PROFILE_*` variables (its docs nsys-profiling.md and the torch
profiler page).
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import Any

from rlprof_ops.backends.nsight_presets import resolve
from rlprof_ops.frameworks.base import (
    Framework,
    Imported,
    Remarks,
    Rendered,
    Worker,
    common_losses,
    select,
    usable,
)
from rlprof_ops.request import CaptureSpec, ProfileRequest, Steps, Window, load_request
from rlprof_ops.request.problems import Problem, RequestError
from rlprof_ops.request.selectors import is_pattern

_POLICY = ("logprob", "ref_logprob", "train", "weight_sync")
_GENERATION = ("generation", "weight_sync")
WORKERS = (
    Worker("dtensor_policy_worker", ("policy_worker",), _POLICY),
    Worker("dtensor_policy_worker_v2", ("policy_worker",), _POLICY),
    Worker(
        "megatron_policy_worker",
        ("policy_worker",),
        _POLICY,
        "needs LD_LIBRARY_PATH, or libtransformer_engine.so fails to load",
    ),
    Worker("megatron_quant_policy_worker", ("policy_worker",), _POLICY, "as megatron_policy_worker"),
    Worker(
        "vllm_generation_worker",
        ("generation_worker",),
        _GENERATION,
        "with TP x PP > 1 its own report is empty; the inner workers write worker_process_<PID> or"
        " vllm_tp_worker_*",
    ),
    Worker("vllm_async_generation_worker", ("generation_worker",), _GENERATION, "as vllm_generation_worker"),
    Worker(
        "trtllm_async_generation_worker",
        ("generation_worker",),
        _GENERATION,
        "one report per inner GPU worker",
    ),
    Worker(
        "sglang_generation_worker",
        ("generation_worker",),
        _GENERATION,
        "is wrapped, but never started: reports stay empty",
    ),
)
TORCH_WORKERS = ("dtensor_policy_worker", "megatron_policy_worker", "vllm_generation_worker")
PHASES = {
    "generation": ("vllm_genertion_worker/generate",),  # spelt so upstream
    "logprob": ("policy_worker/get_logprobs",),
    "ref_logprob": ("policy_worker/get_reference_policy_logprobs",),
    "train": ("megatron_policy_worker/train", "dtensor_policy_worker/train"),
    "weight_sync": ("refit",),
}
LD_LIBRARY_PATH = (
    "/usr/local/cuda/targets/x86_64-linux/lib:/usr/local/cuda/lib64:/usr/local/cuda/lib:/usr/local/nvidia/lib64:"
    "/usr/local/nvidia/lib:/usr/lib/x86_64-linux-gnu"
)
RAY_LOG_SYNC_FREQUENCY_S = 30
NO_END = 1_000_000  # NeMo RL has no open range; its own tests go this far
_ASSIGNMENT = re.compile(r"(?P<name>[A-Za-z_][A-Za-z0-9_]*)=(?P<value>.*)", re.DOTALL)


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
            lines += _lines(number, spec, request, remarks)
    if "nsight" in done:
        lines.append(f"export RAY_LOG_SYNC_FREQUENCY={RAY_LOG_SYNC_FREQUENCY_S}")
        remarks.note("RAY_LOG_SYNC_FREQUENCY is for NeMo RL's own ray.sub; rlprof's copies reports by itself")
    if request.output_dir is not None and "nsight" in done:
        remarks.lose("output_dir for nsight; its reports stay in /tmp/ray/session_*/logs/nsight of each node")
    if request.output_dir is not None and "torch" in done:
        lines.append(f"export NRL_TORCH_PROFILE_DIR={shlex.quote(request.output_dir)}")
    return remarks.rendered("NeMo RL variables", "".join(line + "\n" for line in lines))


def _lines(number: int, spec: CaptureSpec, request: ProfileRequest, remarks: Remarks) -> list[str]:
    workers = [w for w in WORKERS if spec.backend == "nsight" or w.name in TORCH_WORKERS]
    patterns = _patterns(spec, workers, remarks)
    if not patterns:
        return []
    prefix = "NRL_NSYS" if spec.backend == "nsight" else "NRL_TORCH_PROFILE"
    lines = [
        f"export {prefix}_WORKER_PATTERNS={shlex.quote(','.join(patterns))}",
        (
            "export"
            f" NRL_{'NSYS' if spec.backend == 'nsight' else 'TORCH'}_PROFILE_STEP_RANGE="
            f"{_range(number, spec.steps, remarks)}"
        ),
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


def _patterns(spec: CaptureSpec, workers: list[Worker], remarks: Remarks) -> list[str]:
    """Patterns as written where they match NeMo RL's names, its names where they are ours."""
    found: list[str] = []
    for pattern in spec.workers:
        if any(fnmatchcase(w.name, pattern) for w in workers):
            found.append(pattern)
        else:
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


def import_(text: str, name: str) -> Imported:
    """Read `export` lines, or assignments before a command, back into a request.

    Raises:
        RequestError: with NeMo RL's own rules, and ours.
    """
    env = read_assignments(text, name)
    request = load_request(env={key: value for key, value in env.items() if key.startswith("NRL_")})
    notes = list(request.notes)
    if not request.captures and not any(key.startswith("NRL_") for key in env):
        notes.append("no NRL_NSYS_* or NRL_TORCH_PROFILE_* variable is set: nothing is profiled")
    return Imported(request, tuple(notes))


def read_assignments(text: str, name: str) -> dict[str, str]:
    """Variables set by `export A=b`, `A=b` lines or `A=b C=d command`. Raises RequestError for broken
    quoting.
    """
    try:
        tokens = shlex.split(text.replace("\\\n", " "), comments=True)
    except ValueError as error:
        raise RequestError([Problem(f"the shell cannot read these lines: {error}", name)]) from None
    found = {}
    for token in tokens:
        match = _ASSIGNMENT.fullmatch(token)
        if match:
            found[match["name"]] = match["value"]
    return found


def world(config: Mapping[str, Any]) -> dict[str, int]:
    """Ranks per worker of a NeMo RL configuration (`cluster`, `policy`).

    Every GPU holds a policy rank; a generation worker is one engine, on tensor x pipeline parallel GPUs.
    """
    from rlprof_ops.frameworks.hydra import dig

    def number(default: int, *path: str) -> int:
        value = dig(config, *path)
        return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else default

    per_node = number(0, "cluster", "gpus_per_node")
    gpus = number(0, "cluster", "num_nodes") * per_node
    if not gpus:
        return {}
    generation = gpus
    if dig(config, "policy", "generation", "colocated", "enabled") is False:
        resources = ("policy", "generation", "colocated", "resources")
        generation = number(1, *resources, "num_nodes") * number(per_node, *resources, "gpus_per_node")
        gpus = max(0, gpus - generation)
    if dig(config, "policy", "megatron_cfg", "enabled") is True:
        policy = "megatron_policy_worker"
    else:
        policy = (
            "dtensor_policy_worker_v2"
            if dig(config, "policy", "dtensor_cfg", "_v2") is True
            else "dtensor_policy_worker"
        )
    found = {policy: gpus}
    backend = dig(config, "policy", "generation", "backend")
    if backend in ("vllm", "sglang", "trtllm"):
        cfg = ("policy", "generation", f"{backend}_cfg")
        size = number(1, *cfg, "tensor_parallel_size") * number(1, *cfg, "pipeline_parallel_size")
        names = {
            "vllm": "vllm_generation_worker",
            "sglang": "sglang_generation_worker",
            "trtllm": "trtllm_async_generation_worker",
        }
        worker = names[backend]
        if backend == "vllm" and size > 1 and dig(config, *cfg, "async_engine") is True:
            worker = "vllm_async_generation_worker"
        found[worker] = generation // size
    return found


FRAMEWORK = Framework("nemo_rl", "NeMo RL", ("env",), WORKERS, PHASES, render, import_, world)
