"""verl's schemes before 0.6 read back: `trainer.profile_steps`, with ranks and mode per role."""

from __future__ import annotations

from typing import Any

from rlprof_ops.request.problems import nearest, shown, words
from rlprof_ops.request.steps import Steps
from rlprof_ops.trainers.dialects import Imported
from rlprof_ops.trainers.hydra import dig
from rlprof_ops.trainers.verl.chosen import ranges_end
from rlprof_ops.trainers.verl.reading import Reading, group
from rlprof_ops.trainers.verl.schemes import Scheme

DOCUMENT_KEYS = ("profile_steps", "profile_ranks", "profile_ranks_all", "profile_discrete")
PROFILER_KEYS = ("_target_", "ranks", "all_ranks", "discrete")
# The document names these places for critic and reward model; the trainer reads the others.
ELSEWHERE = {"critic": ("actor_rollout_ref", "critic"), "reward_model": ("actor_rollout_ref", "rm")}


def read_old(reading: Reading, scheme: Scheme) -> Imported:
    """The request of an old configuration. null and `[]` are no ranks. Raises RequestError."""
    if reading.get("trainer", "device") == "npu":
        reading.problem(("trainer", "device"), "npu is Ascend's, which rlprof does not cover")
    steps = reading.steps("trainer", "profile_steps")
    roles: dict[str, dict[str, Any]] = {}
    modes: dict[str, bool] = {}
    document = scheme.layout == "document"
    discrete_key = "profile_discrete" if document else "discrete"
    for role, own in scheme.paths.items():
        path = _place(reading, role, own) if document else own
        _unknown(reading, path, document)
        ranks = _ranks(reading, path, document)
        if ranks is not None:
            roles[role] = {"ranks": ranks}
            modes[role] = reading.truth(False, *path, discrete_key)
        elif reading.truth(False, *path, discrete_key):
            reading.notes.append(
                f"{'.'.join(path)}.{discrete_key} alone profiles nothing: {role} has no ranks"
            )
    if len(set(modes.values())) > 1:
        on, off = (words(r for r, v in modes.items() if v is wanted) for wanted in (True, False))
        reading.problem(
            (*scheme.paths["actor"], discrete_key),
            f"{discrete_key} is true for {on} and false for {off}; if one is, all must be",
        )
    if not roles:
        reading.notes.append("no role has ranks: nothing is profiled")
    each = "phase" if any(modes.values()) else "step"
    if each == "step" and any(n + 1 in steps for n in steps):
        reading.notes.append(
            "adjacent steps share one report here; this scheme of verl writes one for each step"
        )
    common: dict[str, Any] = {"backend": "nsight", "steps": steps, "each": each}
    ends = (ranges_end(Steps.parse(steps), each == "phase", joined=False),)
    common["options"] = reading.worker_options(("trainer", "worker_nsight_options"), ends)
    captures = group(roles, common)
    captures += reading.controller(("trainer", "controller_nsight_options"), common)
    reading.note_unread()
    return Imported(reading.request(captures), tuple(dict.fromkeys(reading.notes)))


def _place(reading: Reading, role: str, path: tuple[str, ...]) -> tuple[str, ...]:
    old = ELSEWHERE.get(role, path)
    if old == path or not isinstance(dig(reading.tree, *old), dict):
        return path
    reading.notes.append(f"{'.'.join(old)}.* is read as {'.'.join(path)}.*, where the trainer looks")
    return old


def _unknown(reading: Reading, path: tuple[str, ...], document: bool) -> None:
    if not document:
        reading.known(path, PROFILER_KEYS)
        return
    for key in dig(reading.tree, *path) or ():
        if str(key).startswith("profile") and key not in DOCUMENT_KEYS and key != "profiler":
            reading.problem(
                path,
                f"has no key {shown(key)}; it has"
                f" {words(DOCUMENT_KEYS[1:])}.{nearest(str(key), DOCUMENT_KEYS)}",
            )


def _ranks(reading: Reading, path: tuple[str, ...], document: bool) -> Any:
    """ "all", a list, or None for no ranks."""
    if reading.truth(False, *path, "profile_ranks_all" if document else "all_ranks"):
        return "all"
    key = "profile_ranks" if document else "ranks"
    holder = dig(reading.tree, *path)
    ranks = reading.get(*path, key)
    if document and ranks is None and isinstance(holder, dict) and key in holder:
        reading.notes.append(
            f"{'.'.join(path)}.profile_ranks null is read as no ranks; one example of verl's document"
            " comments it as all ranks: for all, set profile_ranks_all"
        )
    return ranks or None
