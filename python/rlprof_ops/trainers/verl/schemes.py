"""Which version of verl reads which keys: one `Scheme` a generation of its configuration."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from rlprof_ops.trainers.verl.verl_names import ROLE_PATHS

HYBRID = ("actor", "rollout", "ref")


@dataclass(frozen=True, eq=False)
class Scheme:
    """How one generation of verl is asked for a profile.

    Attributes:
        name: the dialect's name.
        releases: the versions that read it, for people.
        layout: `global` (`global_profiler`), `each` (`trainer.profile_steps`, a `profiler` per role),
        `shared`
            (one `profiler` for actor, rollout and ref), `document` (`profile_ranks` … of June 2025).
        paths: where each role's profiler is configured; a role that is not in it has none.
        torch_contents: the torch tool takes `contents` and `discrete`.
        rollout_torch: rollout has torch settings of its own, else it follows the actor's `tool_config`.
        exact_memory: torch_memory keeps to steps, ranks and roles.
        relocates: `relocate_results` moves nsys reports into `save_path`.
    """

    name: str
    releases: str
    layout: str = "global"
    paths: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    torch_contents: bool = True
    rollout_torch: bool = False
    exact_memory: bool = False
    relocates: bool = False

    @property
    def tools(self) -> dict[str, str]:
        """Backend -> verl's word for its tool."""
        if self.layout != "global":
            return {"nsight": "nsys"}
        return {"nsight": "nsys", "torch": "torch", "memory": "torch_memory"}


_PROFILERS = {role: (*path, "profiler") for role, path in ROLE_PATHS.items()}
_TODAY = {role: path for role, path in _PROFILERS.items() if role != "reward_model"}
_OLD = {role: path for role, path in _PROFILERS.items() if role != "env"}
_SHARED = dict.fromkeys(HYBRID, ("actor_rollout_ref", "profiler")) | {
    role: _PROFILERS[role] for role in ("critic", "reward_model")
}
V09 = Scheme("verl", "verl 0.9 and newer", "global", _TODAY, True, True, True, True)
V08 = Scheme("verl-0.8", "verl 0.8 (main of 2026 until 0.9)", "global", _PROFILERS)
V06 = Scheme("verl-0.6", "verl 0.6 and 0.7", "global", _PROFILERS, torch_contents=False)
# Of the verl that its document of June 2025 was written for; no release reads the document's own words.
V05 = Scheme("verl-0.5", "verl 0.5", "shared", _SHARED)
V04 = Scheme("verl-0.4", "verl 0.4.1", "each", _OLD)
DOCUMENT = Scheme(
    "verl-legacy",
    "the document of June 2025",
    "document",
    {role: path for role, path in ROLE_PATHS.items() if role != "env"},
)
SCHEMES = {scheme.name: scheme for scheme in (V09, V08, V06, V05, V04, DOCUMENT)}


def scheme_of_version(version: str) -> Scheme:
    """The scheme that a release of verl reads."""
    match = re.match(r"(\d+)\.(\d+)", version)
    number = (int(match[1]), int(match[2])) if match else (1, 0)
    for least, scheme in (((0, 9), V09), ((0, 8), V08), ((0, 6), V06), ((0, 5), V05)):
        if number >= least:
            return scheme
    return V04


def scheme_of_config(tree: Mapping[str, object]) -> Scheme | None:
    """The scheme whose keys stand in a configuration; None when none of verl's profiling does."""
    from rlprof_ops.trainers.hydra import dig

    if dig(tree, "global_profiler") is not None:
        gone = dig(tree, "reward_model", "profiler") is None
        own = dig(tree, "global_profiler", "relocate_results") is not None
        return V09 if gone and own else V08
    if _any(tree, ROLE_PATHS.values(), ("profile_ranks", "profile_ranks_all", "profile_discrete")):
        return DOCUMENT
    if dig(tree, "actor_rollout_ref", "profiler") is not None:
        return V05
    if _any(tree, _PROFILERS.values(), ("enable", "tool", "tool_config", "save_path")):
        return V08
    if _any(tree, _PROFILERS.values(), ("ranks", "all_ranks", "discrete")):
        return V04
    for names in (("critic",), ("rm",)):
        holder = dig(tree, "actor_rollout_ref", *names)
        if isinstance(holder, Mapping) and any(str(key).startswith("profile_") for key in holder):
            return DOCUMENT
    trainer = tree.get("trainer")
    return V04 if isinstance(trainer, Mapping) and "profile_steps" in trainer else None


def _any(tree: Mapping[str, object], paths: object, keys: tuple[str, ...]) -> bool:
    from rlprof_ops.trainers.hydra import dig

    holders = [dig(tree, *path) for path in paths]  # type: ignore[attr-defined]
    return any(isinstance(holder, Mapping) and any(key in holder for key in keys) for holder in holders)
