"""One verl configuration while it is read: settings by path, with the problems and notes that come up."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rlprof_ops.request.build import Reader, read_request
from rlprof_ops.request.model import ProfileRequest
from rlprof_ops.request.problems import Problem, RequestError, nearest, shown, words
from rlprof_ops.runtime.process.worker_identity import CONTROLLER
from rlprof_ops.trainers.hydra import dig, is_interpolation, unescaped, without_computed
from rlprof_ops.trainers.trainer_file import dig_resolved
from rlprof_ops.trainers.verl.chosen import WORKER_DEFAULTS

# `controller_nsight_options` of every version; the controller is recorded with them whatever a request says.
CONTROLLER_DEFAULTS = {
    "trace": "cuda,nvtx,cublas,ucx",
    "cuda-memory-usage": "true",
    "cuda-graph-trace": "graph",
}


class Reading:
    """Reads settings; collects problems and notes."""

    def __init__(self, tree: Mapping[str, Any], name: str) -> None:
        self.tree = tree
        self.name = name
        self.problems: list[Problem] = []
        self.notes: list[str] = []

    def get(self, *path: str) -> Any:
        """A setting; one that the trainer computes (`${…}`) from what does not stand here counts as not
        set.
        """
        *where, last = path
        there = {last: dig_resolved(self.tree, *path)}
        return without_computed(there, ".".join(where), "verl", self.notes).get(last)

    def truth(self, default: bool, *path: str) -> bool:
        value = self.get(*path)
        if value is None:
            return default
        if not isinstance(value, bool):
            self.problem(path, f"must be true or false, not {shown(value)}")
            return default
        return value

    def problem(self, path: tuple[str, ...], message: str) -> None:
        self.problems.append(Problem(f"{'.'.join(path)}: {message}", self.name))

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
        """nsys options as they are written, without those that only say what verl does anyway."""
        value = self.get(*path)
        if value is None:
            return {}
        if not isinstance(value, Mapping):
            self.problem(path, f"must be a mapping of nsys options, not {shown(value)}")
            return {}
        return {
            k: v
            for k, v in without_computed(value, ".".join(path), "verl", self.notes).items()
            if v is not None and WORKER_DEFAULTS.get(k) != v
        }

    def worker_options(self, path: tuple[str, ...], ends: tuple[str | None, ...]) -> dict[str, Any]:
        """nsys options of the workers, without a `capture-range-end` that `render` computes by itself."""
        found = self.options(*path)
        if found.get("capture-range-end") in ends:
            found.pop("capture-range-end", None)
        return found

    def controller(self, path: tuple[str, ...], common: Mapping[str, Any]) -> list[dict[str, Any]]:
        """A capture of the controller where its options are not verl's own defaults."""
        found = self.options(*path)
        if not common.get("steps") or all(CONTROLLER_DEFAULTS.get(k) == v for k, v in found.items()):
            return []
        return [{**common, "workers": [CONTROLLER], "options": found}]

    def note_unread(self) -> None:
        """What stands in a configuration near profiling and is none of a request's."""
        timeline = self.get("ray_kwargs", "timeline_json_file")
        if timeline is not None:
            self.notes.append(
                f"ray_kwargs.timeline_json_file {shown(timeline)} is Ray's own timeline of its tasks,"
                " written at the"
                " end; it stays in verl's configuration"
            )
        for key in ("finish_hook_cmd",):
            hook = self.get("global_profiler", key)
            if hook is not None:
                self.notes.append(
                    f"global_profiler.{key} {shown(hook)} is left out: rlprof brings reports home by"
                    " itself; keep it"
                    " in verl's configuration if it does more"
                )

    def request(self, captures: list[dict[str, Any]], output_dir: Any = None) -> ProfileRequest:
        """The checked request; raises RequestError with all problems."""
        checked = Reader({(): self.name}, origin=self.name)
        request = read_request(checked, unescaped({"captures": captures, "output_dir": output_dir}))
        problems = self.problems + checked.problems
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
