"""A request in RLinf's words: `cluster.profiling`, and `megatron.profiler` for the torch profiler."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rlprof_ops import backends
from rlprof_ops.backends.nsight import presets as nsight_presets
from rlprof_ops.request import CaptureSpec, ProfileRequest, Steps
from rlprof_ops.request.problems import nearest, words
from rlprof_ops.request.selectors import is_pattern
from rlprof_ops.trainers import hydra
from rlprof_ops.trainers.dialects import Remarks, Rendered, common_losses, select, usable
from rlprof_ops.trainers.hydra import Setting
from rlprof_ops.trainers.rlinf.rlinf_names import FIELDS, STEPPED, TORCH_DEFAULTS, WORKERS, canonical_group

OPEN_STEPS = 10  # RLinf lists steps; of an open range these many are written
TOP = ("cluster", "profiling")
MEGATRON = ("actor", "megatron")


def render(request: ProfileRequest, fmt: str = "yaml") -> Rendered:
    """`cluster.profiling` (and `actor.megatron`) as a YAML fragment or as Hydra overrides."""
    remarks = Remarks()
    settings: list[Setting] = []
    system: list[CaptureSpec] = []
    torch = False
    for number, spec in usable(request, remarks):
        common_losses(number, spec, "RLinf", remarks, env="env" in FIELDS.get(spec.backend, ()))
        if spec.ranks is not None:
            remarks.lose(f"capture {number}: ranks; RLinf profiles every rank of a worker group")
        if spec.each == "phase":
            remarks.lose(f"capture {number}: each: phase; RLinf writes a report for each step")
        if spec.backend == "torch":
            if torch:
                remarks.lose(f"capture {number} is left out: RLinf takes one torch capture")
            else:
                settings += _torch(number, spec, request, remarks)
                torch = True
        elif spec.backend not in FIELDS:
            remarks.lose(f"capture {number}: RLinf has no {spec.backend}")
        elif system and _common(spec) != _common(system[0]):
            remarks.lose(
                f"capture {number} is left out: RLinf has one backend, one list of steps and one set of"
                " options"
            )
        else:
            system.append(spec)
    if system:
        settings = _system(system, request, remarks) + settings
    elif not request.enabled and torch:
        remarks.lose("enabled: false is written as use_profiler: False")
    body = hydra.to_yaml(settings) if fmt == "yaml" else hydra.to_hydra(settings)
    return remarks.rendered("RLinf configuration" if fmt == "yaml" else "RLinf overrides", body)


def _common(spec: CaptureSpec) -> tuple[Any, ...]:
    return (spec.backend, spec.steps, spec.options, spec.flags, spec.env)


def _system(specs: Sequence[CaptureSpec], request: ProfileRequest, remarks: Remarks) -> list[Setting]:
    spec = specs[0]
    groups = _groups([pattern for one in specs for pattern in one.workers], spec, remarks)
    settings = [
        Setting((*TOP, "backend"), spec.backend, new=True),
        Setting((*TOP, "enabled"), request.enabled, new=True),
        Setting((*TOP, "worker_groups"), groups, new=True),
        Setting((*TOP, "steps"), _steps(spec.steps, remarks), new=True),
    ]
    if (folder := request.folder(spec.backend)) is not None:
        settings.append(Setting((*TOP, "output_dir"), folder, new=True))
    theirs = backends.get(spec.backend).ray_words
    return settings + (_in_rays_words(spec, theirs, remarks) if theirs else _nsight(spec, remarks))


def _groups(patterns: Sequence[str], spec: CaptureSpec, remarks: Remarks) -> list[str]:
    """RLinf's `worker_groups`. Names are free text: one that we do not know is passed on, with a note.

    RLinf compares names whatever their case and knows no patterns, so a pattern is written out as the known
    groups that it matches.
    """
    if "*" in patterns:
        return ["all"]
    known = [w.name.lower() for w in WORKERS]
    found: list[str] = []
    for pattern in patterns:
        if not is_pattern(pattern) and pattern.lower() in known:
            found.append(canonical_group(pattern))
        elif is_pattern(pattern) or pattern in [a for w in WORKERS for a in w.aliases]:
            found += select([pattern], WORKERS, "RLinf", remarks)
        else:
            near = nearest(pattern, [w.name for w in WORKERS]).strip()
            remarks.note(
                f"{pattern!r} is no group of RLinf's own examples and is written as it is; RLinf ignores a"
                f" name that its configuration does not have{f' ({near[:-1]}, perhaps?)' if near else ''}"
            )
            found.append(pattern)
    groups = [w.name for w in WORKERS if w.name in found] + [g for g in found if g.lower() not in known]
    stepped = bool(spec.steps) and str(spec.steps) != "1:"
    silent = [g for g in groups if stepped and g not in STEPPED]
    if silent:
        remarks.note(
            f"{', '.join(silent)}: RLinf opens its windows in {', '.join(STEPPED)} only, so these collect"
            " nothing, unless they run under another name"
        )
    return list(dict.fromkeys(groups))


def _steps(steps: Steps, remarks: Remarks) -> list[int] | None:
    """RLinf's list of global steps, counted from 0; None is the worker's whole life."""
    if str(steps) == "1:":
        remarks.note("steps null: RLinf records each worker from its start to its end")
        return None
    if steps.is_open:
        start = steps.runs[-1].start
        remarks.lose(f"the open range '{start}:' is cut to {OPEN_STEPS} steps, since RLinf lists every step")
        steps = steps.clip(1, start + OPEN_STEPS)
    if steps:
        remarks.note(f"RLinf counts global steps from 0: its steps here are one less than '{steps}'")
        remarks.note("only RLinf's embodied runners open windows; elsewhere steps make empty reports")
    if any(len(run) > 1 for run in steps.runs if run.stop is not None):
        remarks.note("RLinf writes one report for each step, also for adjacent ones")
    return [n - 1 for run in steps.runs if run.stop is not None for n in range(run.start, run.stop)]


def _nsight(spec: CaptureSpec, remarks: Remarks) -> list[Setting]:
    options = nsight_presets.resolve(spec.options, spec.flags)
    for name, value in window_options(spec.steps.count()).items():
        # RLinf's own default is `stop`, and then nsys ignores every range but the first.
        own = {"capture-range": ("c",), "capture-range-end": ("stop-on-range-end",)}[name]
        if not any(other in options for other in (name, *own)):
            options[name] = value
    settings = [Setting((*TOP, "options", name), value, new=True) for name, value in options.items()]
    if spec.flags:
        settings.append(Setting((*TOP, "flags"), list(spec.flags), new=True))
    if spec.env:
        those = words(name for name, fields in FIELDS.items() if "env" in fields)
        remarks.lose(f"env {', '.join(spec.env)}; RLinf has it for {those} only")
    return settings


def window_options(ranges: int | None) -> dict[str, str]:
    """What nsys needs for more than one range of a process, where RLinf writes "stop" by itself."""
    if ranges is None or ranges < 2:
        return {}
    return {"capture-range": "cudaProfilerApi", "capture-range-end": f"repeat:{ranges}"}


def _in_rays_words(spec: CaptureSpec, theirs: Mapping[str, str], remarks: Remarks) -> list[Setting]:
    remarks.lose(
        f"{spec.backend} elsewhere than in a job of rlprof, where ours takes the place of RLinf's own wrap:"
        " that gives rocprof-sys-python the interpreter as if it were a script, and no worker starts (source"
        " code string cannot contain null bytes). Leave cluster.profiling out there"
    )
    if spec.flags:
        remarks.lose(f"flags {', '.join(spec.flags)}; RLinf's {theirs['options']} need a value")
    for warning in backends.validate(spec).warnings:
        remarks.note(warning)
    if spec.steps and str(spec.steps) != "1:":
        remarks.note(
            f"{spec.backend} has no gate on steps outside a job of rlprof: a worker is recorded whole"
        )
    return [
        Setting((*TOP, word, name), value, new=True)
        for ours, word in theirs.items()
        for name, value in getattr(spec, ours).items()
    ]


def _torch(number: int, spec: CaptureSpec, request: ProfileRequest, remarks: Remarks) -> list[Setting]:
    """`actor.megatron.use_profiler` and all thirteen keys of `profiler`, which RLinf demands."""
    groups = _groups(spec.workers, CaptureSpec(), remarks)
    if groups not in (["ActorGroup"], ["all"]) or groups == ["all"]:
        remarks.lose(f"capture {number}: workers; RLinf's torch profiler is in the Megatron actor only")
    if spec.flags:
        switches = [flag for flag in spec.flags if flag not in TORCH_DEFAULTS]
        if switches:
            remarks.lose(
                f"capture {number}: flags {', '.join(switches)}; RLinf's torch profiler has none of these"
            )
    options = spec.options | {
        flag: "true" for flag in spec.flags if isinstance(TORCH_DEFAULTS.get(flag), bool)
    }
    unknown = [name for name in options if name not in TORCH_DEFAULTS]
    if unknown:
        remarks.lose(
            f"capture {number}: options {', '.join(unknown)}; RLinf's torch profiler has none of these"
        )
    values = {
        name: _typed(TORCH_DEFAULTS[name], options[name]) if name in options else default
        for name, default in TORCH_DEFAULTS.items()
    }
    if (folder := request.folder("torch")) is not None:
        values["output_dir"] = folder
    values["schedule_repeat"] = _repeat(number, spec.steps, remarks)
    remarks.note(
        "the torch profiler records the last schedule_active mini-batches of each training step, and every"
        " inference call"
    )
    path = (*MEGATRON, "profiler")
    return [
        Setting((*MEGATRON, "use_profiler"), request.enabled and bool(spec.steps), new=True),
        *[Setting((*path, name), value, new=True) for name, value in values.items()],
    ]


def _repeat(number: int, steps: Steps, remarks: Remarks) -> int:
    """`schedule_repeat`: RLinf's cycle is one training step, and it starts with the first."""
    count = steps.count()
    if not steps or count is None or len(steps.runs) > 1 or steps.first != 1:
        if steps:
            remarks.lose(
                f"capture {number}: steps '{steps}'; RLinf's torch profiler begins with step 1 and has no gap"
            )
        return count or OPEN_STEPS if steps else 1
    return count


def _typed(default: Any, text: str) -> Any:
    if isinstance(default, list):
        return [item.strip() for item in text.split(",") if item.strip()]
    if isinstance(default, str):
        return text
    return hydra.plain(text)
