"""A request in verl's words: `global_profiler.*` with per-role `profiler.*`; older schemes in render_old."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rlprof_ops.request import CaptureSpec, ProfileRequest
from rlprof_ops.trainers import hydra
from rlprof_ops.trainers.dialects import Remarks, Rendered
from rlprof_ops.trainers.hydra import Setting
from rlprof_ops.trainers.verl.chosen import (
    CONTENTS,
    MINI_BATCHES,
    NSYS,
    SGLANG_CONTENTS,
    Chosen,
    capture_range_end,
    choose,
    numbers,
)
from rlprof_ops.trainers.verl.render_old import old_settings
from rlprof_ops.trainers.verl.schemes import SCHEMES, V09, Scheme


def renderer(scheme: Scheme, note: str = "") -> Callable[[ProfileRequest, str], Rendered]:
    """`render` of one scheme; `note` says how the scheme was found."""

    def render(request: ProfileRequest, fmt: str = "hydra") -> Rendered:
        remarks = Remarks()
        chosen = choose(request, scheme, remarks)
        settings: list[Setting] = []
        if chosen.backend:
            settings = (
                _today(request, chosen, remarks)
                if scheme.layout == "global"
                else old_settings(request, chosen, remarks)
            )
        others = ", ".join(name for name in SCHEMES if name != scheme.name)
        remarks.note(note or f"read by {scheme.releases}; other versions: {others}")
        text = hydra.to_hydra(settings) if fmt == "hydra" else hydra.to_yaml(settings)
        what = "overrides" if fmt == "hydra" else "configuration"
        return remarks.rendered(f"verl {what} ({scheme.releases})", text)

    return render


def _today(request: ProfileRequest, chosen: Chosen, remarks: Remarks) -> list[Setting]:
    top = ("global_profiler",)
    scheme, steps = chosen.scheme, numbers(chosen.steps)
    # verl's torch_memory heeds no steps before 0.9: none is "every", and off is no tool
    off = not chosen.steps and chosen.backend == "memory"
    settings = [
        Setting((*top, "tool"), None if off else scheme.tools[chosen.backend]),
        Setting((*top, "steps"), steps or None),
        Setting((*top, "profile_continuous_steps"), not chosen.discrete),
    ]
    settings += _output(request, chosen, remarks)
    if chosen.backend == "nsight":
        settings += _nsys(chosen, remarks)
    if chosen.backend == "memory":
        where = (*top, "global_tool_config", "torch_memory")
        settings += [Setting((*where, name), hydra.plain(value)) for name, value in chosen.options.items()]
        if chosen.discrete:
            remarks.lose("each: phase; verl's torch_memory dumps once a step")
    for role, path in scheme.paths.items():
        settings += _role(role, path, chosen)
    if chosen.backend == "torch":
        settings += _torch(chosen, remarks)
    _today_remarks(chosen, remarks)
    return settings


def _output(request: ProfileRequest, chosen: Chosen, remarks: Remarks) -> list[Setting]:
    folder = request.folder(chosen.backend)
    if folder is None:
        return []
    top = ("global_profiler",)
    if chosen.backend != "nsight":
        return [Setting((*top, "save_path"), folder)]
    if chosen.scheme.relocates:
        return [
            Setting((*top, "save_path"), folder),
            Setting((*top, "relocate_results"), True),
        ]
    remarks.lose("output_dir; verl's nsys reports stay in /tmp/ray/session_latest/logs/nsight of each node")
    return []


def _nsys(chosen: Chosen, remarks: Remarks) -> list[Setting]:
    controller, worker = (*NSYS, "controller_nsight_options"), (*NSYS, "worker_nsight_options")
    settings = [Setting((*NSYS, "discrete"), chosen.discrete)]
    settings += [Setting((*controller, name), value, new=True) for name, value in chosen.controller.items()]
    settings += [Setting((*worker, name), value, new=True) for name, value in chosen.options.items()]
    end = capture_range_end(chosen, remarks)
    if end:
        settings.append(Setting((*worker, "capture-range-end"), end))
    remarks.note("verl starts every rank of every worker under nsys, and its controller for its whole life")
    return settings


def _role(role: str, path: tuple[str, ...], chosen: Chosen) -> list[Setting]:
    """A role that is off is written where verl could have it on: rollout would follow the actor otherwise."""
    spec = chosen.roles.get(role)
    if spec is None:
        return [] if role in ("reward_model", "env") else [Setting((*path, "enable"), False)]
    return [
        Setting((*path, "enable"), True),
        Setting((*path, "all_ranks"), spec.ranks is None),
        Setting((*path, "ranks"), list(spec.ranks or ())),
    ]


def _torch(chosen: Chosen, remarks: Remarks) -> list[Setting]:
    """The torch tool's settings. Rollout and reward model follow the actor's through an interpolation, which
    Hydra cannot override from inside, so theirs are written at the actor's place.
    """
    scheme, settings = chosen.scheme, []
    follow = {"rollout": "actor", "reward_model": "actor"}
    places: dict[str, tuple[str, CaptureSpec]] = {}
    for role, spec in chosen.roles.items():
        place = follow.get(role, role)
        first = places.setdefault(place, (role, spec))
        if torch_settings(first[1], scheme) != torch_settings(spec, scheme):
            remarks.lose(f"{role}'s torch options: verl gives it those of {first[0]}")
    served = chosen.roles.get("rollout")
    alone = places.get("actor", ("", None))[0] != "actor"
    discrete = chosen.discrete or (served is not None and alone)
    for place, (_, spec) in places.items():
        where = (*scheme.paths[place], "tool_config", "torch")
        settings += [Setting((*where, key), value) for key, value in torch_settings(spec, scheme).items()]
        if scheme.torch_contents:
            settings.append(Setting((*where, "discrete"), discrete if place == "actor" else chosen.discrete))
    if served is not None and scheme.rollout_torch and not discrete:
        where = (*scheme.paths["rollout"], "tool_config", "torch")
        settings.append(Setting((*where, "discrete"), True))
    if served is not None and not scheme.torch_contents:
        remarks.lose(f"rollout: the inference servers of {scheme.releases} take no torch profile")
    elif served is not None and not chosen.discrete:
        remarks.lose(
            "each: step for rollout; verl's inference servers are traced in discrete mode alone, so"
            + (
                " it is set for them"
                if (not alone and scheme.rollout_torch) or alone
                else " they take nothing beside an actor in step mode: write each: phase"
            )
        )
    if served is not None and scheme is not V09:
        remarks.note(
            "vLLM before 0.13 writes no trace without VLLM_TORCH_PROFILER_DIR, set before its"
            " servers start, e.g. to"
            " global_profiler.save_path"
        )
    return settings


def torch_settings(spec: CaptureSpec, scheme: Scheme) -> dict[str, Any]:
    """`tool_config.torch` of one capture, without its mode."""
    if not scheme.torch_contents:
        return {name: hydra.plain(spec.options[name]) for name in MINI_BATCHES if name in spec.options}
    words = CONTENTS | ({} if scheme is V09 else SGLANG_CONTENTS)
    found = [a.strip() for a in spec.options.get("activities", "").split(",") if a.strip() in ("cpu", "cuda")]
    on = {name for name, value in spec.options.items() if value in ("true", "1", "yes", "on")} | set(
        spec.flags
    )
    return {"contents": found + [word for name, word in words.items() if name in on]}


def _today_remarks(chosen: Chosen, remarks: Remarks) -> None:
    count, scheme = chosen.steps.count() or 0, chosen.scheme
    if chosen.backend == "memory" and not scheme.exact_memory and chosen.roles and not chosen.all_memory():
        remarks.lose(
            f"memory: {scheme.releases} dumps a snapshot of every actor rank after every step,"
            " whatever steps, ranks,"
            " roles and enable say; let rlprof take it (submit without --framework), or use verl 0.9"
        )
    if chosen.backend == "torch":
        if len(chosen.steps.runs) > 1 or (chosen.discrete and count > 1):
            remarks.lose(
                "verl's torch traces carry no step in their path: later windows overwrite earlier ones"
            )
        if not scheme.torch_contents:
            remarks.lose(
                f"torch: the tool of {scheme.releases} records mini-batches step_start to step_end of"
                " the first"
                " update, and verl itself calls it not fully supported"
            )
    if "rollout" in chosen.roles:
        if chosen.roles["rollout"].ranks is not None and scheme is not V09:
            remarks.note("rollout ranks are replicas, not global ranks")
        if chosen.backend != "torch":
            remarks.note(
                f"verl's inference servers are not captured with {scheme.tools[chosen.backend]}:"
                " generation has no"
                " range of its own"
            )
    actor, ref = chosen.roles.get("actor"), chosen.roles.get("ref")
    if (actor.ranks if actor is not None else ()) != (ref.ranks if ref is not None else ()):
        remarks.note(
            "a hybrid worker reads only the actor's settings; ref's count for a stand-alone ref worker"
        )
