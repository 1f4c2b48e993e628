"""verl's configuration read back into a request, with one stated meaning for null and `[]`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from rlprof_ops.request.model import ProfileRequest
from rlprof_ops.request.problems import RequestError, nearest, shown, words
from rlprof_ops.request.steps import Steps
from rlprof_ops.trainers.dialects import Imported
from rlprof_ops.trainers.hydra import dig, read_settings
from rlprof_ops.trainers.verl.chosen import (
    CONTENTS,
    MEMORY_OPTIONS,
    MINI_BATCHES,
    NSYS,
    SGLANG_CONTENTS,
    ranges_end,
)
from rlprof_ops.trainers.verl.import_old import read_old
from rlprof_ops.trainers.verl.reading import Reading, group
from rlprof_ops.trainers.verl.schemes import V06, V08, V09, Scheme, scheme_of_config

HOOK_KEYS = ("relocate_results", "finish_hook_cmd", "finish_hook_all_ranks", "finish_hook_ranks")
GLOBAL_KEYS = ("_target_", "tool", "steps", "profile_continuous_steps", "save_path", "global_tool_config",
               *HOOK_KEYS)  # fmt: skip
NSYS_KEYS = ("_target_", "discrete", "controller_nsight_options", "worker_nsight_options")
ROLE_KEYS = ("_target_", "tool", "enable", "all_ranks", "ranks", "save_path", "tool_config",
             "global_tool_config", *HOOK_KEYS)  # fmt: skip
TORCH_KEYS = {
    V09: ("_target_", "contents", "discrete", "schedule", "profile_token_start", "profile_token_end", "name"),
    V08: ("_target_", "contents", "discrete", "step_start", "step_end", "name"),
    V06: ("_target_", "step_start", "step_end", "manual_save", "name"),
}
FOLLOWS_ACTOR = ("rollout", "reward_model")


def importer(scheme: Scheme) -> Callable[[str, str], Imported]:
    """`import_` of one dialect; a configuration in the words of another scheme is read as that one."""

    def import_(text: str, name: str) -> Imported:
        tree = read_settings(text, name)
        reading = Reading(tree, name)
        if isinstance(dig(tree, "trainer"), Mapping) and "profile_interval" in dig(tree, "trainer"):
            return _sft(reading)
        found = scheme_of_config(tree)
        used = found if found is not None and found.layout != scheme.layout else scheme
        if used is not scheme:
            reading.notes.append(f"the configuration is in the scheme of {used.releases}, and is read so")
        imported = _today(reading, used) if used.layout == "global" else read_old(reading, used)
        if found is None and not imported.request.captures:
            notes = (*imported.notes, "no key of verl's profiling is in it")
            return Imported(imported.request, notes, found=False)
        return imported

    return import_


def _today(reading: Reading, scheme: Scheme) -> Imported:
    """`global_profiler.*` and per-role `profiler.*`. Raises RequestError."""
    reading.known(("global_profiler",), GLOBAL_KEYS)
    reading.known(NSYS, NSYS_KEYS)
    if reading.get("profiler", "steps") is not None:
        reading.problem(("profiler", "steps"), "is no key of verl; write global_profiler.steps")
    tool = reading.get("global_profiler", "tool")
    steps = reading.steps("global_profiler", "steps")
    backend = _backend(reading, scheme, tool, ("global_profiler", "tool"))
    reading.note_unread()
    if backend == "memory" and (not scheme.exact_memory or not _any_enable(reading, scheme)):
        return _memory(reading)
    roles = _roles(reading, scheme, backend)
    if backend is None:
        if reading.problems:
            raise RequestError(reading.problems)
        off = (
            "global_profiler.tool is null"
            + (", so the steps have no effect" if steps else "")
            + ": nothing is profiled"
        )
        return Imported(ProfileRequest(), (*reading.notes, off))
    discrete = any(own["each"] == "phase" for own in roles.values())
    _mode_notes(reading, steps, discrete)
    if backend == "nsight" and steps:
        reading.notes.append(
            "verl also records its controller, from its start to its end; ask for it with workers:"
            " [controller]"
        )
    if not roles:
        reading.notes.append("no role has profiler.enable=True: nothing is profiled")
    common: dict[str, Any] = {"backend": backend, "steps": steps}
    captures: list[dict[str, Any]]
    if backend == "nsight":
        ends = tuple(ranges_end(Steps.parse(steps), discrete, joined) for joined in (True, False))
        common["options"] = reading.worker_options((*NSYS, "worker_nsight_options"), ends if roles else ())
        captures = group(roles, common)
        mode = common | {"each": "phase" if discrete else "step"}
        captures += reading.controller((*NSYS, "controller_nsight_options"), mode)
    else:
        if backend == "memory":
            common["options"] = _memory_options(reading)
        captures = group(roles, common)
    kept = backend == "nsight" and not reading.truth(False, "global_profiler", "relocate_results")
    output_dir = None if kept else reading.get("global_profiler", "save_path")
    return Imported(reading.request(captures, output_dir), tuple(reading.notes))


def _memory(reading: Reading) -> Imported:
    """torch_memory before verl 0.9: a snapshot of every actor rank after every step, whatever the settings
    say.
    """
    reading.notes.append(
        "verl before 0.9 dumps a snapshot of every actor rank after every step, whatever steps,"
        " ranks, roles and"
        " enable say, and is read so; verl 0.9 keeps to them"
    )
    capture = {
        "backend": "memory",
        "workers": ["actor"],
        "ranks": "all",
        "steps": "1:",
        "options": _memory_options(reading),
    }
    save_path = reading.get("global_profiler", "save_path")
    return Imported(reading.request([capture], save_path), tuple(reading.notes))


def _memory_options(reading: Reading) -> dict[str, Any]:
    found = reading.get("global_profiler", "global_tool_config", "torch_memory")
    together = found.get("memory_snapshot_num_steps") if isinstance(found, Mapping) else None
    if together not in (None, 1):
        reading.notes.append(
            f"torch_memory.memory_snapshot_num_steps {shown(together)} is left out: verl dumps one snapshot"
            " for so many steps, rlprof one for each window of steps"
        )
    return {k: v for k, v in found.items() if k in MEMORY_OPTIONS} if isinstance(found, Mapping) else {}


def _sft(reading: Reading) -> Imported:
    """The SFT trainer: one `profiler` block, on from the first step of `trainer.profile_interval` to its
    last.
    """
    interval = reading.get("trainer", "profile_interval")
    if (
        not isinstance(interval, list)
        or len(interval) != 2
        or any(not isinstance(n, int) or isinstance(n, bool) for n in interval)
    ):
        reading.problem(("trainer", "profile_interval"), f"{shown(interval)} must be [first, last]")
        raise RequestError(reading.problems)
    first, last = interval
    backend = _backend(reading, V09, reading.get("profiler", "tool"), ("profiler", "tool"))
    on = reading.truth(False, "profiler", "enable") and first > 0 and last >= first
    reading.note_unread()
    if not on or backend is None:
        if reading.problems:
            raise RequestError(reading.problems)
        return Imported(
            ProfileRequest(),
            (*reading.notes, "profiler.enable or profile_interval is off: nothing is profiled"),
        )
    capture: dict[str, Any] = {
        "backend": backend,
        "workers": ["sft"],
        "ranks": _ranks(reading, ("profiler",)),
        "steps": f"{first}:{last + 1}",
    }
    if backend == "torch":
        capture["options"] = _contents(reading, ("profiler", "tool_config", "torch"), V09)
    reading.notes.append("verl's SFT trainer has one worker, called sft here; rlprof renders nothing for it")
    output_dir = reading.get("profiler", "save_path") if backend != "nsight" else None
    return Imported(reading.request([capture], output_dir), tuple(reading.notes))


def _backend(reading: Reading, scheme: Scheme, tool: Any, path: tuple[str, ...]) -> str | None:
    if tool is None:
        return None
    by_tool = {name: backend for backend, name in scheme.tools.items()}
    if not isinstance(tool, str) or tool not in by_tool:
        hint = nearest(str(tool), list(by_tool))
        if tool == "npu":
            hint = " (npu is Ascend's, which rlprof does not cover)"
        elif tool == "precision_debugger":
            hint = " (precision_debugger compares numbers and is no profile)"
        reading.problem(path, f"{shown(tool)} is unknown; allowed are {words(by_tool)}.{hint}")
        return None
    return by_tool[tool]


def _any_enable(reading: Reading, scheme: Scheme) -> bool:
    return any(reading.get(*path, "enable") is not None for path in scheme.paths.values())


def _enabled(reading: Reading, scheme: Scheme, role: str) -> bool:
    default = _enabled(reading, scheme, "actor") if role == "rollout" else False
    return reading.truth(default, *scheme.paths[role], "enable")


def _roles(reading: Reading, scheme: Scheme, backend: str | None) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {}
    for role, path in scheme.paths.items():
        reading.known(path, ROLE_KEYS)
        reading.known((*path, "tool_config", "torch"), TORCH_KEYS[scheme])
        if not _enabled(reading, scheme, role):
            continue
        source = path
        if role == "rollout" and all(dig(reading.tree, *path, key) is None for key in ("all_ranks", "ranks")):
            source = scheme.paths["actor"]
        discrete = _discrete(reading, scheme, role, backend)
        if backend == "torch" and role == "rollout" and not discrete:
            reading.notes.append(
                "rollout takes nothing: verl's inference servers are traced in discrete mode alone"
            )
            continue
        own: dict[str, Any] = {"ranks": _ranks(reading, source), "each": "phase" if discrete else "step"}
        if backend == "torch":
            own["options"] = _contents(reading, _torch_place(reading, scheme, role), scheme)
        found[role] = own
    _one_mode(reading, found, backend)
    return found


def _torch_place(reading: Reading, scheme: Scheme, role: str) -> tuple[str, ...]:
    """Where a role's torch settings stand: rollout and reward model take the actor's unless they say their
    own.
    """
    own = (*scheme.paths[role], "tool_config", "torch")
    if role in FOLLOWS_ACTOR and reading.get(*own, "contents") is None:
        return (*scheme.paths["actor"], "tool_config", "torch")
    return own


def _discrete(reading: Reading, scheme: Scheme, role: str, backend: str | None) -> bool:
    if backend not in ("nsight", "torch"):
        return False
    tool = "nsys" if backend == "nsight" else "torch"
    default = reading.truth(False, *NSYS, "discrete") if tool == "nsys" else False
    if role in FOLLOWS_ACTOR:
        default = reading.truth(default, *scheme.paths["actor"], "tool_config", tool, "discrete")
    return reading.truth(default, *scheme.paths[role], "tool_config", tool, "discrete")


def _one_mode(reading: Reading, roles: Mapping[str, dict[str, Any]], backend: str | None) -> None:
    """A discrete stop would end the whole-step range of the same process. Inference servers have their
    own.
    """
    modes = {r: own["each"] == "phase" for r, own in roles.items() if backend == "nsight" or r != "rollout"}
    if len(set(modes.values())) > 1:
        on = words(role for role, value in modes.items() if value)
        off = words(role for role, value in modes.items() if not value)
        reading.problem(
            (*NSYS, "discrete"),
            f"is true for {on} and false for {off}; roles share a process, so set one for all",
        )


def _ranks(reading: Reading, path: tuple[str, ...]) -> Any:
    """As verl executes it: all_ranks wins, `[]` is rank 0, null is an assertion error, text matches
    nothing.
    """
    if reading.truth(False, *path, "all_ranks"):
        return "all"
    holder = dig(reading.tree, *path)
    if isinstance(holder, Mapping) and "ranks" in holder and holder["ranks"] is None:
        reading.problem(
            (*path, "ranks"), "null stops verl with an assertion error; write [] or a list of ranks"
        )
    ranks = reading.get(*path, "ranks")
    if ranks is None or ranks == []:
        reading.notes.append(f"{'.'.join(path)}.ranks [] is read as rank 0, which is what verl captures then")
        return [0]
    return ranks


def _contents(reading: Reading, path: tuple[str, ...], scheme: Scheme) -> dict[str, Any]:
    options: dict[str, Any] = {
        name: value for name in MINI_BATCHES if (value := reading.get(*path, name)) not in (None, 0)
    }
    for name in ("schedule", "profile_token_start", "profile_token_end"):
        value = reading.get(*path, name)
        if isinstance(value, Mapping) and not any(value.get(k) for k in value if not k.startswith("_")):
            continue
        if value is not None:
            reading.notes.append(f"{'.'.join(path)}.{name} is verl's own and left out")
    value = reading.get(*path, "contents")
    if value is None:
        return options
    known = CONTENTS | ({} if scheme is V09 else SGLANG_CONTENTS)
    allowed = ("cpu", "cuda", *known.values())
    if not isinstance(value, list) or any(word not in allowed for word in value):
        reading.problem((*path, "contents"), f"{shown(value)} must be a list of {words(allowed)}")
        return {}
    activities = ",".join(word for word in value if word in ("cpu", "cuda"))
    if activities:
        options["activities"] = activities
    return options | {name: "true" for name, word in known.items() if word in value}


def _mode_notes(reading: Reading, steps: list[int], discrete: bool) -> None:
    continuous = reading.truth(False, "global_profiler", "profile_continuous_steps")
    if continuous and discrete:
        reading.notes.append("profile_continuous_steps has no effect with discrete, and is left out")
    adjacent = any(n + 1 in steps for n in steps)
    if adjacent and not continuous and not discrete:
        reading.notes.append(
            "adjacent steps share one report here; verl writes one each without profile_continuous_steps"
        )
