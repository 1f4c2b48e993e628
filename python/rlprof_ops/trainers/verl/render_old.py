"""A request in the schemes before verl 0.6: `trainer.profile_steps`, with ranks and mode per role."""

from __future__ import annotations

from typing import Any

from rlprof_ops.request import CaptureSpec, ProfileRequest
from rlprof_ops.trainers.dialects import Remarks
from rlprof_ops.trainers.hydra import Setting
from rlprof_ops.trainers.verl.chosen import Chosen, capture_range_end, numbers
from rlprof_ops.trainers.verl.schemes import DOCUMENT, HYBRID, Scheme


def old_settings(request: ProfileRequest, chosen: Chosen, remarks: Remarks) -> list[Setting]:
    """The schemes before `global_profiler`: `trainer.profile_steps`, and ranks and mode per role."""
    if request.folder("nsight") is not None:
        remarks.lose(
            "output_dir; verl's nsys reports stay in /tmp/ray/session_latest/logs/nsight of each node"
        )
    scheme = chosen.scheme
    new = scheme is DOCUMENT
    settings = [Setting(("trainer", "profile_steps"), numbers(chosen.steps) or None)]
    worker = ("trainer", "worker_nsight_options")
    controller = ("trainer", "controller_nsight_options")
    settings += [Setting((*controller, name), value, new=True) for name, value in chosen.controller.items()]
    settings += [Setting((*worker, name), value, new=True) for name, value in chosen.options.items()]
    end = capture_range_end(chosen, remarks, joined=False)
    if end:
        settings.append(Setting((*worker, "capture-range-end"), end, new=True))
    if any(len(run) > 1 for run in chosen.steps.runs if run.stop is not None) and not chosen.discrete:
        # Without `profile_continuous_steps` every listed step is a range of its own.
        remarks.note("this scheme writes one report for each step, also for adjacent ones")
    if scheme.layout == "shared":
        _one_for_all(chosen, remarks)
    written: set[tuple[str, ...]] = set()
    for role, path in scheme.paths.items():
        spec = chosen.roles.get(role)
        if path in written or (new and spec is None and role == "reward_model"):
            continue
        if spec is None and scheme.layout == "shared" and role in HYBRID:
            spec = next((chosen.roles[other] for other in HYBRID if other in chosen.roles), None)
        written.add(path)
        values = _old_values(spec, chosen.discrete, scheme)
        settings += [
            Setting((*path, key), value, new=new and role == "reward_model") for key, value in values.items()
        ]
    remarks.note("null and [] are no ranks here, and the mode is the same for every role")
    return settings


def _old_values(spec: CaptureSpec | None, discrete: bool, scheme: Scheme) -> dict[str, Any]:
    prefix = "profile_" if scheme.layout == "document" else ""
    everyone = "profile_ranks_all" if prefix else "all_ranks"
    return {
        f"{prefix}ranks": list(spec.ranks or ()) if spec is not None else [],
        everyone: spec is not None and spec.ranks is None,
        f"{prefix}discrete": discrete,
    }


def _one_for_all(chosen: Chosen, remarks: Remarks) -> None:
    """verl 0.5 has one profiler for actor, rollout and ref."""
    asked = {role: chosen.roles[role].ranks for role in HYBRID if role in chosen.roles}
    if asked and len(asked) < len(HYBRID):
        missing = ", ".join(role for role in HYBRID if role not in asked)
        remarks.lose(
            f"{', '.join(asked)} without {missing}: verl 0.5 has one profiler for actor, rollout and ref"
        )
    if len(set(asked.values())) > 1:
        remarks.lose(
            f"ranks of {', '.join(list(asked)[1:])}: verl 0.5 has one profiler for actor, rollout and ref"
        )
