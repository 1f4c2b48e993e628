"""verl's configuration read back into a request, in both schemes, with one stated meaning for null and
`[]`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rlprof_ops.frameworks.base import Imported
from rlprof_ops.frameworks.hydra import dig, is_interpolation, read_settings
from rlprof_ops.frameworks.verl.render import (
    CONTENTS,
    MEMORY_OPTIONS,
    NSYS,
    TOOLS,
    WORKER_DEFAULTS,
    ranges_end,
)
from rlprof_ops.frameworks.verl.roles import ROLE_PATHS
from rlprof_ops.request.build import Path, Reader, read_request
from rlprof_ops.request.model import ProfileRequest
from rlprof_ops.request.problems import Problem, RequestError, nearest, shown, words
from rlprof_ops.request.steps import Steps

GLOBAL_KEYS = ("_target_", "tool", "steps", "profile_continuous_steps", "save_path", "global_tool_config",
               "finish_hook_cmd", "finish_hook_ranks", "relocate_results")  # fmt: skip
NSYS_KEYS = ("_target_", "discrete", "controller_nsight_options", "worker_nsight_options")
ROLE_KEYS = ("_target_", "tool", "enable", "all_ranks", "ranks", "save_path", "tool_config")
TORCH_KEYS = ("_target_", "contents", "discrete", "step_start", "step_end", "name")
LEGACY_KEYS = ("profile_steps", "profile_ranks", "profile_ranks_all", "profile_discrete")
# Old documents name these places for critic and reward model; the trainer reads the others.
LEGACY_PATHS = {"critic": ("actor_rollout_ref", "critic"), "reward_model": ("actor_rollout_ref", "rm")}


class Scheme:
    """Reads one configuration; collects problems, notes and the captures of the profiled roles."""

    def __init__(self, tree: Mapping[str, Any], name: str) -> None:
        self.tree = tree
        self.name = name
        self.reader = Reader(origin=name)
        self.notes: list[str] = []

    def get(self, *path: str) -> Any:
        """A setting; one that the trainer computes from others (`${…}`) counts as not set."""
        value = dig(self.tree, *path)
        return None if is_interpolation(value) else value

    def truth(self, default: bool, *path: str) -> bool:
        value = self.get(*path)
        if value is None:
            return default
        if not isinstance(value, bool):
            self.problem(path, f"must be true or false, not {shown(value)}")
            return default
        return value

    def problem(self, path: tuple[str, ...], message: str) -> None:
        self.reader.problems.append(Problem(f"{'.'.join(path)}: {message}", self.name))

    def known(self, path: tuple[str, ...], allowed: tuple[str, ...]) -> None:
        """Unknown keys under `path` fail in verl only when a worker is built; here they fail now."""
        found = dig(self.tree, *path)
        if found is not None and not isinstance(found, Mapping) and not is_interpolation(found):
            self.problem(path, f"must be a mapping, not {shown(found)}")
        for key in found if isinstance(found, Mapping) else ():
            if key not in allowed:
                shown_words = words(w for w in allowed if not w.startswith("_"))
                self.problem(
                    path, f"has no key {shown(key)}; it has {shown_words}.{nearest(str(key), allowed)}"
                )

    def steps(self, *path: str) -> list[int]:
        value = self.get(*path)
        if value is None:
            return []
        if not isinstance(value, list) or any(
            not isinstance(n, int) or isinstance(n, bool) or n < 1 for n in value
        ):
            self.problem(
                path, f"{shown(value)} must be null or a list of steps counted from 1, e.g. [1, 2, 5]"
            )
            return []
        return value

    def options(self, *path: str) -> dict[str, Any]:
        value = self.get(*path)
        if value is None:
            return {}
        if not isinstance(value, Mapping):
            self.problem(path, f"must be a mapping of nsys options, not {shown(value)}")
            return {}
        return {
            k: v
            for k, v in value.items()
            if v is not None and not is_interpolation(v) and WORKER_DEFAULTS.get(k) != v
        }

    def worker_options(self, path: tuple[str, ...], ends: tuple[str | None, ...]) -> dict[str, Any]:
        """nsys options of the workers, without a `capture-range-end` that `render` computes by itself."""
        found = self.options(*path)
        if found.get("capture-range-end") in ends:
            found.pop("capture-range-end", None)
        return found

    def request(self, captures: list[dict[str, Any]], output_dir: Any = None) -> ProfileRequest:
        """The checked request; raises RequestError with all problems."""
        values: dict[Path, str] = {(): self.name}
        checked = Reader(values, origin=self.name)
        request = read_request(checked, {"captures": captures, "output_dir": output_dir})
        problems = self.reader.problems + checked.problems
        if problems:
            raise RequestError(list(dict.fromkeys(problems)))
        return request


def group(roles: Mapping[str, dict[str, Any]], common: dict[str, Any]) -> list[dict[str, Any]]:
    """One capture for the roles that agree in everything but their name, in verl's order of roles."""
    captures: list[dict[str, Any]] = []
    for role, own in roles.items():
        for capture in captures:
            if {k: v for k, v in capture.items() if k != "workers"} == common | own:
                capture["workers"].append(role)
                break
        else:
            captures.append({"workers": [role], **common, **own})
    return captures


def import_(text: str, name: str) -> Imported:
    """Today's scheme: `global_profiler.*` and per-role `profiler.*`. Raises RequestError."""
    scheme = Scheme(read_settings(text, name), name)
    scheme.known(("global_profiler",), GLOBAL_KEYS)
    scheme.known(NSYS, NSYS_KEYS)
    if scheme.get("profiler", "steps") is not None:
        scheme.problem(("profiler", "steps"), "is no key of verl; write global_profiler.steps")
    tool = scheme.get("global_profiler", "tool")
    steps = scheme.steps("global_profiler", "steps")
    backend = _backend(scheme, tool)
    discrete = _discrete(scheme, backend)
    roles = _roles(scheme, backend)
    if backend is None:
        if scheme.reader.problems:
            raise RequestError(scheme.reader.problems)
        off = (
            "global_profiler.tool is null"
            + (", so the steps have no effect" if steps else "")
            + ": nothing is profiled"
        )
        return Imported(ProfileRequest(), (*scheme.notes, off))
    _mode_notes(scheme, steps, discrete)
    if backend == "nsight" and steps:
        scheme.notes.append(
            "verl also records its controller, from its start to its end; ask for it with workers:"
            " [controller]"
        )
    if not roles:
        scheme.notes.append("no role has profiler.enable=True: nothing is profiled")
    common: dict[str, Any] = {"backend": backend, "steps": steps, "each": "phase" if discrete else "step"}
    if backend == "nsight":
        end = ranges_end(tuple(roles), Steps.parse(steps), discrete)
        common["options"] = scheme.worker_options((*NSYS, "worker_nsight_options"), (end,))
    if backend == "memory":
        found = scheme.get("global_profiler", "global_tool_config", "torch_memory")
        common["options"] = (
            {k: v for k, v in found.items() if k in MEMORY_OPTIONS} if isinstance(found, Mapping) else {}
        )
    output_dir = scheme.get("global_profiler", "save_path") if backend != "nsight" else None
    return Imported(scheme.request(group(roles, common), output_dir), tuple(scheme.notes))


def _backend(scheme: Scheme, tool: Any) -> str | None:
    if tool is None:
        return None
    by_tool = {name: backend for backend, name in TOOLS.items()}
    if not isinstance(tool, str) or tool not in by_tool:
        hint = (
            " (npu is Ascend's, which rlprof does not cover)"
            if tool == "npu"
            else nearest(str(tool), list(by_tool))
        )
        scheme.problem(
            ("global_profiler", "tool"), f"{shown(tool)} is unknown; allowed are {words(by_tool)}.{hint}"
        )
        return None
    return by_tool[tool]


def _discrete(scheme: Scheme, backend: str | None) -> bool:
    """One mode for all profiled roles: a discrete stop would end the whole-step range of the same process."""
    tool = "nsys" if backend == "nsight" else "torch"
    if backend not in ("nsight", "torch"):
        return False
    default = scheme.truth(False, *NSYS, "discrete") if tool == "nsys" else False
    modes: dict[str, bool] = {}
    for role, path in ROLE_PATHS.items():
        if _enabled(scheme, role):
            follows = (
                role == "rollout" and scheme.get(*path, "profiler", "tool_config", tool, "discrete") is None
            )
            source = ROLE_PATHS["actor"] if follows else path
            modes[role] = scheme.truth(default, *source, "profiler", "tool_config", tool, "discrete")
    if len(set(modes.values())) > 1:
        on = words(role for role, value in modes.items() if value)
        off = words(role for role, value in modes.items() if not value)
        scheme.problem(
            (*NSYS, "discrete"),
            f"is true for {on} and false for {off}; roles share a process, so set one for all",
        )
    return any(modes.values()) if modes else default


def _enabled(scheme: Scheme, role: str) -> bool:
    default = _enabled(scheme, "actor") if role == "rollout" else False
    return scheme.truth(default, *ROLE_PATHS[role], "profiler", "enable")


def _roles(scheme: Scheme, backend: str | None) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {}
    for role, path in ROLE_PATHS.items():
        where = (*path, "profiler")
        scheme.known(where, ROLE_KEYS)
        scheme.known((*where, "tool_config", "torch"), TORCH_KEYS)
        if not _enabled(scheme, role):
            continue
        source = where
        if role == "rollout" and all(dig(scheme.tree, *where, key) is None for key in ("all_ranks", "ranks")):
            source = (*ROLE_PATHS["actor"], "profiler")
        own: dict[str, Any] = {"ranks": _ranks(scheme, source)}
        if backend == "torch":
            own["options"] = _contents(scheme, (*path, "profiler", "tool_config", "torch", "contents"))
        found[role] = own
    return found


def _ranks(scheme: Scheme, path: tuple[str, ...]) -> Any:
    """As verl executes it: all_ranks wins, `[]` is rank 0, null is an assertion error, text matches
    nothing.
    """
    if scheme.truth(False, *path, "all_ranks"):
        return "all"
    holder = dig(scheme.tree, *path)
    if isinstance(holder, Mapping) and "ranks" in holder and holder["ranks"] is None:
        scheme.problem(
            (*path, "ranks"), "null stops verl with an assertion error; write [] or a list of ranks"
        )
    ranks = scheme.get(*path, "ranks")
    if ranks is None or ranks == []:
        scheme.notes.append(f"{'.'.join(path)}.ranks [] is read as rank 0, which is what verl captures then")
        return [0]
    return ranks


def _contents(scheme: Scheme, path: tuple[str, ...]) -> dict[str, str]:
    value = scheme.get(*path)
    if value is None:
        return {}
    allowed = ("cpu", "cuda", *CONTENTS.values(), "profile-by-stage", "merge-profiles")
    if not isinstance(value, list) or any(word not in allowed for word in value):
        scheme.problem(path, f"{shown(value)} must be a list of {words(allowed)}")
        return {}
    options = {"activities": ",".join(word for word in value if word in ("cpu", "cuda"))}
    options |= {name: "true" for name, word in CONTENTS.items() if word in value}
    lost = [word for word in value if word in ("profile-by-stage", "merge-profiles")]
    if lost:
        scheme.notes.append(f"{'.'.join(path)}: {words(lost)} are SGLang's own and left out")
    return {name: value for name, value in options.items() if value}


def _mode_notes(scheme: Scheme, steps: list[int], discrete: bool) -> None:
    continuous = scheme.truth(False, "global_profiler", "profile_continuous_steps")
    if continuous and discrete:
        scheme.notes.append("profile_continuous_steps has no effect with discrete, and is left out")
    adjacent = any(n + 1 in steps for n in steps)
    if adjacent and not continuous and not discrete:
        scheme.notes.append(
            "adjacent steps share one report here; verl writes one each without profile_continuous_steps"
        )


def import_legacy(text: str, name: str) -> Imported:
    """The scheme of June 2025. null and `[]` are no ranks; profile_ranks_all is all. Raises RequestError."""
    scheme = Scheme(read_settings(text, name), name)
    steps = scheme.steps("trainer", "profile_steps")
    roles: dict[str, dict[str, Any]] = {}
    modes: dict[str, bool] = {}
    for role, path in ROLE_PATHS.items():
        old = LEGACY_PATHS.get(role, path)
        if old != path and isinstance(dig(scheme.tree, *old), Mapping):
            scheme.notes.append(f"{'.'.join(old)}.* is read as {'.'.join(path)}.*, where the trainer looks")
            path = old
        ranks = _legacy_ranks(scheme, role, path)
        for key in dig(scheme.tree, *path) or ():
            if str(key).startswith("profile") and key not in LEGACY_KEYS and key != "profiler":
                scheme.problem(
                    path,
                    f"has no key {shown(key)}; it has"
                    f" {words(LEGACY_KEYS[1:])}.{nearest(str(key), LEGACY_KEYS)}",
                )
        if ranks is not None:
            roles[role] = {"ranks": ranks}
            modes[role] = scheme.truth(False, *path, "profile_discrete")
        elif scheme.truth(False, *path, "profile_discrete"):
            scheme.notes.append(
                f"{'.'.join(path)}.profile_discrete alone profiles nothing: {role} has no ranks"
            )
    if len(set(modes.values())) > 1:
        on, off = (words(r for r, v in modes.items() if v is wanted) for wanted in (True, False))
        scheme.problem(
            (*ROLE_PATHS["actor"], "profile_discrete"),
            f"profile_discrete is true for {on} and false for {off}; if one is, all must be",
        )
    if not roles:
        scheme.notes.append("no role has profile_ranks or profile_ranks_all: nothing is profiled")
    each = "phase" if any(modes.values()) else "step"
    if each == "step" and any(n + 1 in steps for n in steps):
        scheme.notes.append(
            "adjacent steps share one report here; this scheme of verl writes one for each step"
        )
    common: dict[str, Any] = {"backend": "nsight", "steps": steps, "each": each}
    asked = Steps.parse(steps)
    ends = (ranges_end(tuple(roles), asked, each == "phase"), f"repeat-shutdown:{asked.count()}")
    common["options"] = scheme.worker_options(("trainer", "worker_nsight_options"), ends)
    return Imported(scheme.request(group(roles, common)), tuple(scheme.notes))


def _legacy_ranks(scheme: Scheme, role: str, path: tuple[str, ...]) -> Any:
    """ "all", a list, or None for no ranks."""
    if scheme.truth(False, *path, "profile_ranks_all"):
        return "all"
    holder = dig(scheme.tree, *path)
    ranks = scheme.get(*path, "profile_ranks")
    if ranks is None and isinstance(holder, Mapping) and "profile_ranks" in holder:
        scheme.notes.append(
            f"{'.'.join(path)}.profile_ranks null is read as no ranks; one example of verl's document"
            " comments it as all ranks: for all, set profile_ranks_all"
        )
    return ranks or None
