"""What of a request one verl run can do, and the words that all of its schemes share."""

from __future__ import annotations

from dataclasses import dataclass, field
from fnmatch import fnmatchcase

from rlprof_ops.backends.nsight.presets import resolve
from rlprof_ops.request import CaptureSpec, ProfileRequest, Steps
from rlprof_ops.runtime.process.worker_identity import CONTROLLER
from rlprof_ops.trainers.dialects import Remarks, common_losses, select, usable
from rlprof_ops.trainers.verl.schemes import V09, Scheme
from rlprof_ops.trainers.verl.verl_names import WORKERS

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
# SGLang's own, until verl 0.9.
SGLANG_CONTENTS = {"profile_by_stage": "profile-by-stage", "merge_profiles": "merge-profiles"}
MINI_BATCHES = ("step_start", "step_end")  # until verl 0.7
MEMORY_OPTIONS = ("trace_alloc_max_entries", "stack_depth")
OPEN_STEPS = 10  # verl lists steps; of an open range these many are written
NSYS = ("global_profiler", "global_tool_config", "nsys")
# In discrete mode a process has a range for each task that it runs, and only verl knows how many these
# are: the
# actor's process runs ref's and rollout's too, REMAX generates twice, LoRA's ref is nested. `repeat` ends no
# session early and finishes every report at once, where a wrong number loses ranges.
EVERY_RANGE = "repeat"


@dataclass
class Chosen:
    """What of a request one verl run can do: one tool, one list of steps, one mode; ranks and options per
    role.
    """

    scheme: Scheme
    backend: str = ""
    steps: Steps = field(default_factory=Steps)
    discrete: bool = False
    options: dict[str, str] = field(default_factory=dict)
    roles: dict[str, CaptureSpec] = field(default_factory=dict)
    controller: dict[str, str] = field(default_factory=dict)

    def all_memory(self) -> bool:
        """Whether this is what torch_memory before 0.9 does whatever is asked: every step of every actor
        rank.
        """
        actor = self.roles.get("actor")
        return (
            self.backend == "memory"
            and not self.scheme.exact_memory
            and len(self.roles) == 1
            and actor is not None
            and actor.ranks is None
            and str(self.steps) == "1:"
        )


def choose(request: ProfileRequest, scheme: Scheme, remarks: Remarks) -> Chosen:
    """Take the first capture's tool, steps and mode, and what of the others goes with them."""
    chosen = Chosen(scheme)
    for number, spec in usable(request, remarks):
        if spec.backend not in scheme.tools:
            remarks.lose(f"capture {number}: verl has no {spec.backend} ({scheme.releases})")
            continue
        mode = (spec.backend, spec.steps, spec.each == "phase")
        if chosen.backend and mode != (chosen.backend, chosen.steps, chosen.discrete):
            remarks.lose(
                f"capture {number} is left out: verl has one tool, one list of steps and one mode for"
                " all roles"
            )
            continue
        options = _options(number, spec, scheme, remarks)
        shared = spec.backend != "torch"
        if all(fnmatchcase(CONTROLLER, pattern) and pattern != "*" for pattern in spec.workers):
            chosen.backend, chosen.steps, chosen.discrete = mode
            if spec.backend == "nsight":
                chosen.controller = options
            _roles(number, spec, scheme, remarks)
            common_losses(number, spec, "verl", remarks)
            continue
        if chosen.roles and shared and options != chosen.options:
            remarks.lose(f"capture {number}: its options; verl has one set for all roles")
        elif not chosen.roles:
            chosen.backend, chosen.steps, chosen.discrete = mode
            chosen.options = options if shared else {}
        common_losses(number, spec, "verl", remarks)
        if chosen.backend == "nsight" and any(fnmatchcase(CONTROLLER, pattern) for pattern in spec.workers):
            chosen.controller = options
        for role in _roles(number, spec, scheme, remarks):
            if role in chosen.roles:
                remarks.lose(f"capture {number}: {role} is already taken by an earlier capture")
            else:
                chosen.roles[role] = spec
    if not chosen.all_memory():
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


def _roles(number: int, spec: CaptureSpec, scheme: Scheme, remarks: Remarks) -> tuple[str, ...]:
    named = [p for p in spec.workers if p == "env" or "env" in p.strip("*")]
    workers = [w for w in WORKERS if w.name != "env" or named]  # only the VLA trainer has one
    roles = select(spec.workers, workers, "verl", remarks)
    if CONTROLLER in roles:
        if spec.backend == "nsight":
            remarks.lose(
                f"capture {number}: {CONTROLLER} is recorded from its start to its end, whatever the steps"
            )
        else:
            remarks.lose(
                f"capture {number}: verl cannot profile its {CONTROLLER} with {scheme.tools[spec.backend]}"
            )
    for role in roles:
        if role != CONTROLLER and role not in scheme.paths and "*" not in spec.workers:
            remarks.lose(f"capture {number}: {role} has no profiler in {scheme.releases}")
    return tuple(role for role in roles if role in scheme.paths)


def _options(number: int, spec: CaptureSpec, scheme: Scheme, remarks: Remarks) -> dict[str, str]:
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
        lost = [name for name in (*spec.options, *spec.flags) if name not in _torch_words(scheme)]
        if lost:
            remarks.lose(
                f"capture {number}: options {', '.join(lost)}; the torch tool of {scheme.releases}"
                " has none of"
                " these"
            )
        return {}
    found = {}
    for name, value in resolve(spec.options, spec.flags).items():
        if name in LONG_NAMES:
            remarks.note(f"option {name} is written as {LONG_NAMES[name]}")
        found[LONG_NAMES.get(name, name)] = value
    return found


def _torch_words(scheme: Scheme) -> tuple[str, ...]:
    if not scheme.torch_contents:
        return MINI_BATCHES
    return (*CONTENTS, "activities", *(() if scheme is V09 else SGLANG_CONTENTS))


def numbers(steps: Steps) -> list[int]:
    """Every step, as verl lists them."""
    return [n for run in steps.runs if run.stop is not None for n in range(run.start, run.stop)]


def ranges_end(steps: Steps, discrete: bool, joined: bool = True) -> str | None:
    """The `capture-range-end` of a process with these windows; None when it has none.

    `joined`: adjacent steps are one range (`profile_continuous_steps`), else every step is one.
    """
    count = steps.count() or 0
    if not count:
        return None
    return EVERY_RANGE if discrete else f"repeat-shutdown:{len(steps.runs) if joined else count}"


def capture_range_end(chosen: Chosen, remarks: Remarks, joined: bool = True) -> str | None:
    """When each report is written: as its range ends, not at exit. None where the request says it itself."""
    end = ranges_end(chosen.steps, chosen.discrete, joined) if chosen.roles else None
    own = chosen.options.get("capture-range-end")
    if own is None:
        return end
    if own != end:
        remarks.note(f"capture-range-end {own} is the request's own; its windows would need {end}")
    return None
