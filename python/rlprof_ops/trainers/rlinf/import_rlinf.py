"""RLinf's configuration read back into a request, with its own checks (`ProfileConfig` and its backends)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from rlprof_ops import backends
from rlprof_ops.request.build import Reader, read_request
from rlprof_ops.request.model import ProfileRequest
from rlprof_ops.request.problems import Problem, RequestError, nearest, shown, words
from rlprof_ops.trainers.dialects import Imported
from rlprof_ops.trainers.hydra import dig, is_interpolation, read_settings, unescaped, without_computed
from rlprof_ops.trainers.hydra_defaults import merge
from rlprof_ops.trainers.rlinf.render_rlinf import window_options
from rlprof_ops.trainers.rlinf.rlinf_names import (
    COMMON_FIELDS,
    DOCUMENTED_GROUPS,
    FIELDS,
    PRESETS,
    TORCH_DEFAULTS,
    WORKERS,
    canonical_group,
)
from rlprof_ops.trainers.rlinf.rlinf_placement import group_names

# As RLinf translates `stop-on-range-end`; another value is nsys's own word.
RANGE_END = dict.fromkeys(("true", "1", "yes", "on"), "stop") | dict.fromkeys(
    ("false", "0", "no", "off"), "none"
)
MEGATRON_PATHS = (("actor", "megatron"), ("megatron",))


class ImportNotes:
    """Problems and notes of one configuration."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.problems: list[Problem] = []
        self.notes: list[str] = []

    def problem(self, message: str) -> None:
        self.problems.append(Problem(message, self.name))


def import_(text: str, name: str) -> Imported:
    """Read `cluster.profiling` and `megatron.profiler` from YAML or overrides. Raises RequestError."""
    tree = read_settings(text, name)
    reading = ImportNotes(name)
    captures: list[dict[str, Any]] = []
    data: dict[str, Any] = {"captures": captures}
    profiling = _profiling(tree, reading)
    if profiling is not None:
        enabled = profiling.get("enabled", True)
        data["enabled"] = True if enabled is None else enabled
        if not is_interpolation(profiling.get("output_dir")):
            data["output_dir"] = profiling.get("output_dir")
        capture = _capture(profiling, tree, reading)
        if capture:
            captures.append(capture)
    torch = _torch(tree, data, reading)
    if torch:
        captures.append(torch)
    megatron = next((True for p in MEGATRON_PATHS if dig(tree, *p, "use_profiler") is not None), None)
    if profiling is None and torch is None:
        _misspelt(tree, reading)
        reading.notes.append(
            "neither cluster.profiling nor megatron.use_profiler is there: nothing is profiled"
        )
    checked = Reader(origin=name)
    request: ProfileRequest = read_request(checked, unescaped(data))
    problems = list(dict.fromkeys(reading.problems + checked.problems))
    if problems:
        raise RequestError(problems)
    return Imported(request, tuple(reading.notes), found=profiling is not None or megatron is not None)


def request_of(config: Any) -> ProfileRequest:
    """The request of `cluster.profiling` as a running RLinf holds it (its NsightConfig or RocprofSysConfig).
    Raises RequestError.
    """
    fields: dict[str, Any] = {
        "backend": str(config.backend),
        "enabled": bool(config.enabled),
        "worker_groups": list(config.worker_groups or ()),
        "steps": None if config.steps is None else [int(step) for step in config.steps],
        "output_dir": getattr(config, "output_dir", None) or None,
    }
    for name in FIELDS.get(fields["backend"], ()):
        if name not in COMMON_FIELDS and (value := getattr(config, name, None)):
            fields[name] = list(value) if not isinstance(value, Mapping) else dict(value)
    for name in ("o", "output"):
        fields.get("options", {}).pop(name, None)
    text = json.dumps({"cluster": {"profiling": fields}})
    return import_(text, "cluster.profiling").request


def _misspelt(tree: Mapping[str, Any], reading: ImportNotes) -> None:
    """RLinf ignores an unknown key under `cluster` without a word, its removed `cluster.nsight` too."""
    cluster = tree.get("cluster")
    for key in cluster if isinstance(cluster, Mapping) else ():
        if key == "nsight" or (key != "profiling" and nearest(str(key), ["profiling"])):
            reading.problem(
                f"cluster has no key {shown(key)}, and RLinf would ignore it. Did you mean 'profiling'?"
            )


def _profiling(tree: Mapping[str, Any], reading: ImportNotes) -> dict[str, Any] | None:
    found = dig(tree, "cluster", "profiling")
    bare = {name: tree[name] for fields in FIELDS.values() for name in fields if name in tree}
    if "backend" in bare and isinstance(found or {}, Mapping):  # the block alone, as the document has it
        found = merge(found or {}, bare)
    if found is not None and not isinstance(found, Mapping):
        reading.problem(f"cluster.profiling must be a mapping, not {shown(found)}")
        return None
    preset = _preset(tree)
    if preset:
        merged = dict(PRESETS[preset])
        for key, value in (found or {}).items():
            both = isinstance(value, Mapping) and isinstance(merged.get(key), Mapping)
            merged[key] = {**merged[key], **value} if both else value
        if "worker_groups" not in (found or {}):
            reading.notes.append(
                f"{preset}: read with the groups of RLinf's file, {', '.join(merged['worker_groups'])}; its"
                f" document has {', '.join(DOCUMENTED_GROUPS)} too: name them in worker_groups"
            )
        if merged["backend"] != PRESETS[preset]["backend"]:
            reading.problem(
                f"cluster.profiling: {preset} has nsight options, which backend {shown(merged['backend'])}"
                " refuses; write the block without the preset"
            )
        return merged
    return dict(found) if found is not None else None


def _preset(tree: Mapping[str, Any]) -> str:
    defaults = tree.get("defaults")
    for entry in defaults if isinstance(defaults, list) else ():
        target = dict(entry) if isinstance(entry, Mapping) else {}
        text = (
            entry
            if isinstance(entry, str)
            else "/".join(f"{k.split('@')[0]}/{v}@{k.partition('@')[2]}" for k, v in target.items())
        )
        for preset in PRESETS:
            if text == f"{preset}@cluster.profiling":
                return preset
    return ""


def _capture(
    profiling: Mapping[str, Any], tree: Mapping[str, Any], reading: ImportNotes
) -> dict[str, Any] | None:
    backend = profiling.get("backend")
    if not isinstance(backend, str) or backend not in FIELDS:
        what = "must be specified" if not backend else f"{shown(backend)} is unknown"
        near = nearest(str(backend), list(FIELDS)) if backend else ""
        base = "" if backend else " Where the run's own file has it, give that file with --base."
        reading.problem(f"cluster.profiling.backend {what}; allowed are {words(FIELDS)}.{near}{base}")
        return None
    for key in profiling:
        if key not in FIELDS[backend]:
            reading.problem(
                f"cluster.profiling has no key {shown(key)} for {backend}; it has {words(FIELDS[backend])}."
                f"{nearest(str(key), FIELDS[backend])}"
            )
    groups = _groups(profiling.get("worker_groups"), tree, reading)
    capture: dict[str, Any] = {"backend": backend, "workers": groups, "steps": _steps(profiling, reading)}
    theirs = backends.get(backend).ray_words
    if not theirs:
        capture["options"] = _nsight_options(profiling.get("options"), _count(capture["steps"]), reading)
        capture["flags"] = _flags(profiling.get("flags"), reading)
    for ours, field in theirs.items():
        value = profiling.get(field)
        if value is not None and not isinstance(value, Mapping):
            reading.problem(f"cluster.profiling.{field} must be a mapping, not {shown(value)}")
        elif value:
            capture[ours] = without_computed(value, f"cluster.profiling.{field}", "RLinf", reading.notes)
    if not groups:
        reading.notes.append("cluster.profiling.worker_groups is empty: no worker is profiled")
        return None
    return capture


def _groups(value: Any, tree: Mapping[str, Any], reading: ImportNotes) -> list[str]:
    if value is None:
        return []
    items = [value] if isinstance(value, str) else value
    if not isinstance(items, list) or any(not isinstance(item, str) or not item.strip() for item in items):
        reading.problem(
            f"cluster.profiling.worker_groups must be a list of names or one name, not {shown(value)}"
        )
        return []
    names = ["*" if item.strip().lower() == "all" else canonical_group(item.strip()) for item in items]
    known = [w.name for w in WORKERS] + list(group_names(tree))
    for group in names:
        if group != "*" and group.lower() not in [name.lower() for name in known]:
            reading.notes.append(
                f"worker group {group!r} is none of RLinf's own examples; RLinf ignores a name that does not"
                f" exist.{nearest(group, known)}"
            )
    return ["*"] if "*" in names else names


def _steps(profiling: Mapping[str, Any], reading: ImportNotes) -> Any:
    """RLinf counts from 0 and reads null as the whole life; ours from 1, and null is off."""
    steps = profiling.get("steps")
    if steps is None:
        reading.notes.append(
            "cluster.profiling.steps null is read as '1:', since RLinf records the whole life then"
        )
        return "1:"
    if not isinstance(steps, list) or any(not isinstance(n, int) or isinstance(n, bool) for n in steps):
        reading.problem(
            f"cluster.profiling.steps must be a list of whole numbers or null, not {shown(steps)}"
        )
        return None
    if any(n < 0 for n in steps):
        reading.problem(
            f"cluster.profiling.steps {shown(steps)}: RLinf counts global steps from 0, none is negative"
        )
        return None
    if steps:
        reading.notes.append("RLinf counts global steps from 0, so each is one more here")
    if any(n + 1 in steps for n in steps):
        reading.notes.append("adjacent steps share one report here; RLinf writes one for each")
    return [n + 1 for n in steps]


def _nsight_options(value: Any, ranges: int | None, reading: ImportNotes) -> dict[str, Any]:
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        reading.problem(f"cluster.profiling.options must be a mapping, not {shown(value)}")
        return {}
    for one, other in (("stop-on-range-end", "capture-range-end"), ("o", "output")):
        if one in value and other in value:
            reading.problem(f"cluster.profiling.options has both {one!r} and {other!r}; keep one")
    if "stop-on-range-end" in value and value["stop-on-range-end"] is None:
        reading.problem("cluster.profiling.options: 'stop-on-range-end' needs a value")
    kept = {}
    for name, item in without_computed(value, "cluster.profiling.options", "RLinf", reading.notes).items():
        kept[name] = "" if item is None else item
    if "stop-on-range-end" in kept:
        said = str(kept.pop("stop-on-range-end")).strip()
        kept["capture-range-end"] = RANGE_END.get(said.lower(), said)
    by_rlinf = {"capture-range": "cudaProfilerApi", "capture-range-end": "stop"}
    if ranges == 1:
        return {name: item for name, item in kept.items() if by_rlinf.get(name) != item}
    for computed in (by_rlinf, window_options(ranges)):
        if all(kept.get(name) == word for name, word in computed.items()):
            kept = {name: item for name, item in kept.items() if name not in computed}
    return kept


def _count(steps: Any) -> int | None:
    return len(steps) if isinstance(steps, list) else None


def _flags(value: Any, reading: ImportNotes) -> list[Any]:
    items = [value] if isinstance(value, str) else [] if value is None else value
    if not isinstance(items, list):
        reading.problem(f"cluster.profiling.flags must be a list of names or one name, not {shown(value)}")
        return []
    return items


def _torch(tree: Mapping[str, Any], data: dict[str, Any], reading: ImportNotes) -> dict[str, Any] | None:
    path = next((p for p in MEGATRON_PATHS if isinstance(dig(tree, *p), Mapping)), None)
    if path is None:
        return None
    use, found = dig(tree, *path, "use_profiler"), dig(tree, *path, "profiler")
    where = ".".join(path)
    if use is not True:
        if use not in (None, False):
            reading.problem(f"{where}.use_profiler must be true or false, not {shown(use)}")
        return None
    if not isinstance(found, Mapping):
        reading.problem(
            f"{where}.use_profiler is true, so {where}.profiler must be a mapping, not {shown(found)}"
        )
        return None
    missing = [
        name
        for name in TORCH_DEFAULTS
        if name not in found and name not in ("schedule_warmup", "schedule_active")
    ]
    if missing:
        reading.problem(
            f"{where}.profiler: {words(missing)} must be written; RLinf fills in schedule_warmup and"
            " schedule_active only"
        )
    for name in found:
        if name not in TORCH_DEFAULTS:
            reading.problem(
                f"{where}.profiler has no key {shown(name)}; it has"
                f" {words(TORCH_DEFAULTS)}.{nearest(str(name), list(TORCH_DEFAULTS))}"
            )
    _torch_values(found, f"{where}.profiler", reading)
    if (
        not is_interpolation(found.get("output_dir"))
        and found.get("output_dir") is not None
        and "output_dir" not in data
    ):
        data["output_dir"] = found["output_dir"]
    repeat = found.get("schedule_repeat")
    steps = list(range(1, repeat + 1)) if isinstance(repeat, int) and 0 < repeat <= 10_000 else []
    options = {
        name: ",".join(map(str, value)) if isinstance(value, list) else value
        for name, value in found.items()
        if name in TORCH_DEFAULTS
        and value != TORCH_DEFAULTS[name]
        and name not in ("output_dir", "schedule_repeat")
    }
    reading.notes.append(
        f"{where}.profiler begins with step 1; its schedule_repeat is the number of steps here"
    )
    return {"backend": "torch", "workers": ["ActorGroup"], "steps": steps, "options": options}


def _torch_values(found: Mapping[str, Any], where: str, reading: ImportNotes) -> None:
    for name, default in TORCH_DEFAULTS.items():
        value = found.get(name)
        if value is None or is_interpolation(value):
            continue
        if isinstance(default, bool) and not isinstance(value, bool):
            reading.problem(f"{where}.{name} must be true or false, not {shown(value)}")
        elif type(default) is int:
            least = 0 if name == "schedule_warmup" else 1
            if type(value) is not int or value < least:
                reading.problem(f"{where}.{name} must be a whole number from {least}, not {shown(value)}")
    activities = found.get("activities")
    if activities is not None:
        bad = (
            activities
            if not isinstance(activities, list)
            else [a for a in activities if str(a).lower() not in ("cpu", "cuda")]
        )
        if bad:
            reading.problem(f"{where}.activities {shown(bad)}: allowed are cpu and cuda")
