"""A request in verl's words: today's `global_profiler.*` with per-role `profiler.*`, and the older
`trainer.profile_steps`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any

from rlprof_ops.backends import nsight_presets as nsight
from rlprof_ops.frameworks import hydra
from rlprof_ops.frameworks.base import Remarks, Rendered, common_losses, select, usable
from rlprof_ops.frameworks.hydra import Setting
from rlprof_ops.frameworks.verl.roles import CONTROLLER, ROLE_PATHS, WORKERS, discrete_ranges
from rlprof_ops.request import CaptureSpec, ProfileRequest, Steps

TOOLS = {"nsight": "nsys", "torch": "torch", "memory": "torch_memory"}
# verl's own worker options use the long names; `-t` beside its `--trace` would be given twice.
LONG_NAMES = {
    "t": "trace",
    "s": "sample",
    "b": "backtrace",
    "e": "env-var",
    "y": "delay",
    "d": "duration",
    "p": "nvtx-capture",
    "c": "capture-range",
    "o": "output",
    "x": "stop-on-exit",
}
# What verl's own worker options say of windows (verl/trainer/config/ppo_trainer.yaml).
WORKER_DEFAULTS = {"capture-range": "cudaProfilerApi", "kill": "none"}
# `tool_config.torch.contents` (verl/utils/profiler/config.py) for the switches of torch.profiler.
CONTENTS = {"record_shapes": "shapes", "profile_memory": "memory", "with_stack": "stack"}
MEMORY_OPTIONS = ("trace_alloc_max_entries", "stack_depth")
OPEN_STEPS = 10  # verl lists steps; of an open range these many are written
NSYS = ("global_profiler", "global_tool_config", "nsys")


@dataclass
class Chosen:
    """What of a request one verl run can do: one tool, one list of steps, one mode; ranks and options per
    role.
    """

    backend: str = ""
    steps: Steps = field(default_factory=Steps)
    discrete: bool = False
    options: dict[str, str] = field(default_factory=dict)
    roles: dict[str, CaptureSpec] = field(default_factory=dict)
    controller: dict[str, str] = field(default_factory=dict)


def render(request: ProfileRequest, fmt: str = "hydra") -> Rendered:
    """Today's scheme. `fmt`: hydra (overrides to paste) or yaml."""
    remarks = Remarks()
    chosen = _choose(request, remarks, legacy=False)
    settings = _today(request, chosen, remarks) if chosen.backend else []
    return _finish(settings, fmt, "verl overrides" if fmt == "hydra" else "verl configuration", remarks)


def render_legacy(request: ProfileRequest, fmt: str = "hydra") -> Rendered:
    """The scheme of June 2025 (`trainer.profile_steps`, `profile_ranks`, `profile_discrete`)."""
    remarks = Remarks()
    chosen = _choose(request, remarks, legacy=True)
    settings = _legacy(request, chosen, remarks) if chosen.backend else []
    return _finish(
        settings,
        fmt,
        "verl overrides (June 2025)" if fmt == "hydra" else "verl configuration (June 2025)",
        remarks,
    )


def _finish(settings: list[Setting], fmt: str, title: str, remarks: Remarks) -> Rendered:
    return remarks.rendered(title, hydra.to_hydra(settings) if fmt == "hydra" else hydra.to_yaml(settings))


def _choose(request: ProfileRequest, remarks: Remarks, legacy: bool) -> Chosen:
    """Take the first capture's tool, steps and mode, and what of the others goes with them."""
    chosen = Chosen()
    name = "verl (June 2025)" if legacy else "verl"
    for number, spec in usable(request, remarks):
        if spec.backend not in TOOLS or (legacy and spec.backend != "nsight"):
            remarks.lose(f"capture {number}: {name} has no {spec.backend}")
            continue
        mode = (spec.backend, spec.steps, spec.each == "phase")
        if chosen.backend and mode != (chosen.backend, chosen.steps, chosen.discrete):
            remarks.lose(
                f"capture {number} is left out: {name} has one tool, one list of steps and one mode for all"
                " roles"
            )
            continue
        options = _options(number, spec, remarks, legacy)
        shared = spec.backend != "torch"
        if chosen.backend and shared and options != chosen.options:
            remarks.lose(f"capture {number}: its options; {name} has one set for all roles")
        elif not chosen.backend:
            chosen.backend, chosen.steps, chosen.discrete = mode
            chosen.options = options if shared else {}
        common_losses(number, spec, name, remarks)
        if chosen.backend == "nsight" and any(fnmatchcase(CONTROLLER, pattern) for pattern in spec.workers):
            chosen.controller = options
        for role in _roles(number, spec, remarks):
            if role in chosen.roles:
                remarks.lose(f"capture {number}: {role} is already taken by an earlier capture")
            else:
                chosen.roles[role] = spec
    chosen.steps = _closed(chosen.steps, remarks)
    if not request.enabled and chosen.backend:
        remarks.lose("enabled: false is written as no steps")
        chosen.steps = Steps()
    return chosen


def _closed(steps: Steps, remarks: Remarks) -> Steps:
    if not steps.is_open:
        return steps
    start = steps.runs[-1].start
    remarks.lose(f"the open range '{start}:' is cut to {OPEN_STEPS} steps, since verl lists every step")
    return steps.clip(1, start + OPEN_STEPS)


def _roles(number: int, spec: CaptureSpec, remarks: Remarks) -> tuple[str, ...]:
    roles = select(spec.workers, WORKERS, "verl", remarks)
    if CONTROLLER in roles:
        if spec.backend == "nsight":
            remarks.lose(
                f"capture {number}: {CONTROLLER} is recorded from its start to its end, whatever the steps"
            )
        else:
            remarks.lose(f"capture {number}: verl cannot profile its {CONTROLLER} with {TOOLS[spec.backend]}")
    return tuple(role for role in roles if role != CONTROLLER)


def _options(number: int, spec: CaptureSpec, remarks: Remarks, legacy: bool) -> dict[str, str]:
    if spec.flags:
        known = spec.flags if spec.backend != "torch" else [f for f in spec.flags if f not in CONTENTS]
        if known:
            remarks.lose(f"capture {number}: flags {', '.join(known)}; verl's options need a value")
    if spec.backend == "memory":
        lost = [name for name in spec.options if name not in MEMORY_OPTIONS]
        if lost:
            remarks.lose(
                f"capture {number}: options {', '.join(lost)}; verl's torch_memory has"
                f" {' and '.join(MEMORY_OPTIONS)}"
            )
        return {name: value for name, value in spec.options.items() if name in MEMORY_OPTIONS}
    if spec.backend == "torch":
        lost = [name for name in spec.options if name not in (*CONTENTS, "activities")]
        if lost:
            remarks.lose(f"capture {number}: options {', '.join(lost)}; verl's torch tool has none of these")
        return {}
    found = {}
    for name, value in nsight.resolve(spec.options, spec.flags).items():
        if name in LONG_NAMES:
            remarks.note(f"option {name} is written as {LONG_NAMES[name]}")
        found[LONG_NAMES.get(name, name)] = value
    return found


def _numbers(steps: Steps) -> list[int]:
    return [n for run in steps.runs if run.stop is not None for n in range(run.start, run.stop)]


def _capture_range_end(chosen: Chosen, remarks: Remarks) -> str | None:
    """`repeat-shutdown:<ranges of one process>`: the report is written when the last range ends, not at
    exit.
    """
    end = ranges_end(tuple(chosen.roles), chosen.steps, chosen.discrete)
    own = chosen.options.get("capture-range-end")
    if own is not None:
        if own != end:
            remarks.note(f"capture-range-end {own} is the request's own; the windows would need {end}")
        return None
    if end and chosen.discrete:
        remarks.note(
            "capture-range-end counts the tasks of all profiled roles in one process; with roles in processes"
            " of their own, or REMAX's second generation, count again"
        )
    return end


def ranges_end(roles: tuple[str, ...], steps: Steps, discrete: bool) -> str | None:
    """The `capture-range-end` of a process that runs these roles; None when it has no window."""
    count = steps.count() or 0
    if not count or not roles:
        return None
    return f"repeat-shutdown:{discrete_ranges(roles, count) if discrete else len(steps.runs)}"


def _today(request: ProfileRequest, chosen: Chosen, remarks: Remarks) -> list[Setting]:
    top = ("global_profiler",)
    steps = _numbers(chosen.steps)
    settings = [
        Setting((*top, "tool"), TOOLS[chosen.backend]),
        Setting((*top, "steps"), steps or None),
        Setting((*top, "profile_continuous_steps"), not chosen.discrete),
    ]
    if request.output_dir is not None:
        if chosen.backend == "nsight":
            remarks.lose(
                "output_dir; verl's nsys reports stay in /tmp/ray/session_latest/logs/nsight of each node"
            )
        else:
            settings.append(Setting((*top, "save_path"), request.output_dir))
    if chosen.backend == "nsight":
        settings.append(Setting((*NSYS, "discrete"), chosen.discrete))
        end = _capture_range_end(chosen, remarks)
        controller, worker = (*NSYS, "controller_nsight_options"), (*NSYS, "worker_nsight_options")
        settings += [
            Setting((*controller, name), value, new=True) for name, value in chosen.controller.items()
        ]
        settings += [Setting((*worker, name), value, new=True) for name, value in chosen.options.items()]
        if end:
            settings.append(Setting((*worker, "capture-range-end"), end))
        remarks.note(
            "verl starts every rank of every worker under nsys, and its controller for its whole life"
        )
    if chosen.backend == "memory":
        where = (*top, "global_tool_config", "torch_memory")
        settings += [Setting((*where, name), hydra.plain(value)) for name, value in chosen.options.items()]
        if chosen.discrete:
            remarks.lose("each: phase; verl's torch_memory dumps once a step")
    for role, path in ROLE_PATHS.items():
        settings += _role(role, (*path, "profiler"), chosen)
    _today_remarks(chosen, remarks)
    return settings


def _role(role: str, path: tuple[str, ...], chosen: Chosen) -> list[Setting]:
    """Every role is written, also the ones that are off: rollout would follow the actor otherwise."""
    spec = chosen.roles.get(role)
    if spec is None:
        return [Setting((*path, "enable"), False)]
    settings = [
        Setting((*path, "enable"), True),
        Setting((*path, "all_ranks"), spec.ranks is None),
        Setting((*path, "ranks"), list(spec.ranks or ())),
    ]
    if chosen.backend == "torch":
        settings.append(Setting((*path, "tool_config", "torch", "contents"), _contents(spec)))
        settings.append(Setting((*path, "tool_config", "torch", "discrete"), chosen.discrete))
    return settings


def _contents(spec: CaptureSpec) -> list[str]:
    found = [a.strip() for a in spec.options.get("activities", "").split(",") if a.strip() in ("cpu", "cuda")]
    on = {name for name, value in spec.options.items() if value in ("true", "1", "yes", "on")} | set(
        spec.flags
    )
    return found + [word for name, word in CONTENTS.items() if name in on]


def _today_remarks(chosen: Chosen, remarks: Remarks) -> None:
    count = chosen.steps.count() or 0
    if chosen.backend == "torch" and (len(chosen.steps.runs) > 1 or (chosen.discrete and count > 1)):
        remarks.lose("verl's torch traces carry no step in their path: later windows overwrite earlier ones")
    if "rollout" in chosen.roles:
        if chosen.roles["rollout"].ranks is not None:
            remarks.note("rollout ranks are replicas, not global ranks")
        if chosen.backend != "torch":
            remarks.note(
                f"verl's inference servers are not captured with {TOOLS[chosen.backend]}: generation has no"
                " range of its own"
            )
    actor, ref = chosen.roles.get("actor"), chosen.roles.get("ref")
    if (actor.ranks if actor is not None else ()) != (ref.ranks if ref is not None else ()):
        remarks.note(
            "a hybrid worker reads only the actor's settings; ref's count for a stand-alone ref worker"
        )


def _legacy(request: ProfileRequest, chosen: Chosen, remarks: Remarks) -> list[Setting]:
    if request.output_dir is not None:
        remarks.lose(
            "output_dir; verl's nsys reports stay in /tmp/ray/session_latest/logs/nsight of each node"
        )
    settings = [Setting(("trainer", "profile_steps"), _numbers(chosen.steps) or None)]
    worker = ("trainer", "worker_nsight_options")
    controller = ("trainer", "controller_nsight_options")
    settings += [Setting((*controller, name), value, new=True) for name, value in chosen.controller.items()]
    settings += [Setting((*worker, name), value, new=True) for name, value in chosen.options.items()]
    end = _capture_range_end(chosen, remarks)
    if end:
        settings.append(Setting((*worker, "capture-range-end"), end, new=True))
    several = any(len(run) > 1 for run in chosen.steps.runs if run.stop is not None)
    if end and several and not chosen.discrete:
        # Without `profile_continuous_steps` every listed step is a range of its own.
        count = chosen.steps.count() or 0
        settings[-1] = Setting((*worker, "capture-range-end"), f"repeat-shutdown:{count}", new=True)
        remarks.note("this scheme writes one report for each step, also for adjacent ones")
    for role, path in ROLE_PATHS.items():
        spec = chosen.roles.get(role)
        new = role == "reward_model"
        values: dict[str, Any] = {
            "profile_ranks": list(spec.ranks or ()) if spec is not None else [],
            "profile_ranks_all": spec is not None and spec.ranks is None,
            "profile_discrete": chosen.discrete,
        }
        if spec is not None or not new:
            settings += [Setting((*path, key), value, new=new) for key, value in values.items()]
    remarks.note("null and [] are no ranks here, and profile_discrete is the same for every role")
    return settings
