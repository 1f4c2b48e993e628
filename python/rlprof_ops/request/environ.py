"""A request in environment variables: the `RLPROF_*` twins, and NeMo RL's `NRL_*` with its own strict
rules.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Mapping
from typing import Any

from rlprof_ops import env_names
from rlprof_ops.backends.contract import LEADERS
from rlprof_ops.request.build import Path, Reader
from rlprof_ops.request.problems import Problem, shown
from rlprof_ops.request.selectors import split_words
from rlprof_ops.words import closest

TWINS = {  # variable -> field of the one capture that the variables describe
    "RLPROF_STEPS": "steps",
    "RLPROF_WORKERS": "workers",
    "RLPROF_RANKS": "ranks",
    "RLPROF_BACKEND": "backend",
    "RLPROF_EACH": "each",
    "RLPROF_OPTIONS": "options",
    "RLPROF_FLAGS": "flags",
}
STEPS_FROM = {"RLPROF_STEPS_LOG": "log", "RLPROF_STEPS_LOG_WHEN": "when"}
REQUEST_VARIABLES = (env_names.REQUEST, *TWINS, "RLPROF_OUTPUT_DIR", "RLPROF_ENABLED", *STEPS_FROM)
OTHER_VARIABLES = (  # of other rooms (docs/contracts.md) whose names come close to ours
    env_names.RANK, env_names.WORKER, env_names.REQUEST_JSON,
)  # fmt: skip
_NRL_VARIABLES = (
    *env_names.NRL_STEP_RANGE.values(), *env_names.NRL_WORKER_PATTERNS.values(),
    *env_names.NRL_EXTRA_OPTIONS.values(), *env_names.NRL_FOLDER.values(),
)  # fmt: skip
_AFTER_PREFIX = {
    prefix: {name.removeprefix(prefix): name for name in names}
    for prefix, names in (("RLPROF_", REQUEST_VARIABLES), ("NRL_", _NRL_VARIABLES))
}
NRL_RULES = "NeMo RL's form is one range start:stop, counted from 1, stop not included, e.g. '3:5'"


def twin_captures(reader: Reader, env: Mapping[str, str]) -> list[dict[str, Any]]:
    """The one capture that `RLPROF_*` describe, as plain data; none when no twin is set."""
    given = {name: env[name].strip() for name in TWINS if env.get(name, "").strip()}
    misspelt_variables(reader, env)
    if not given:
        return []
    for name, other in (("RLPROF_STEPS", "RLPROF_WORKERS"), ("RLPROF_WORKERS", "RLPROF_STEPS")):
        if name in given and other not in given:
            near = (
                " (RLPROF_WORKER is another variable)"
                if other == "RLPROF_WORKERS" and env_names.WORKER in env
                else ""
            )
            example = "'*policy*'" if other == "RLPROF_WORKERS" else "'3:5'"
            reader.problems.append(
                Problem(
                    f"is set, but {other} is not{near}; set both or neither, e.g. {other}={example}", name
                )
            )
            return []
    if "RLPROF_STEPS" not in given:
        for name in given:
            reader.problems.append(
                Problem(
                    "is set, but RLPROF_WORKERS and RLPROF_STEPS are not; variables describe one whole"
                    " capture, they do not change the ones of a file",
                    name,
                )
            )
        return []
    capture: dict[str, Any] = {TWINS[name]: _twin_value(reader, name, text) for name, text in given.items()}
    return [capture]


def twin_origin(field: str) -> str:
    """The variable a field of the twins' capture came from."""
    return next((name for name, of in TWINS.items() if of == field), "RLPROF_STEPS")


def _twin_value(reader: Reader, name: str, text: str) -> Any:
    if name == "RLPROF_OPTIONS":
        return json_object(reader, name, text)
    if name == "RLPROF_RANKS":
        return ranks_text(text)
    return text


def ranks_text(text: str) -> Any:
    """`0,1` or `[0, 1]` as numbers; a variable or a flag has no other way to write them. Other text stays
    text.
    """
    words = split_words(text.strip().removeprefix("[").removesuffix("]"))
    if words and all(re.fullmatch("-?[0-9]{1,9}", word, re.ASCII) for word in words):
        return [int(word) for word in words]
    return text


def json_object(reader: Reader, name: str, text: str) -> dict[str, Any]:
    """A variable that holds a JSON object; a problem and {} when it does not."""
    once = None if name.startswith("NRL_") else _each_key_once  # NeMo RL itself takes the last of two
    try:
        value = json.loads(text, object_pairs_hook=once)
    except (ValueError, RecursionError) as error:
        reader.problems.append(
            Problem(f'{shown(text)} is not JSON ({error}); write e.g. \'{{"t": "cuda,nvtx"}}\'', name)
        )
        return {}
    if not isinstance(value, dict):
        reader.problems.append(
            Problem(f'{shown(text)} must be a JSON object, e.g. \'{{"t": "cuda,nvtx"}}\'', name)
        )
        return {}
    return value


def _each_key_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """As in a request's YAML: of two values, nobody knows which was meant."""
    found = dict(pairs)
    if len(found) < len(pairs):
        [(twice, _)] = Counter(key for key, _ in pairs).most_common(1)
        raise ValueError(f"key {twice!r} stands twice")
    return found


def misspelt_variables(reader: Reader, env: Mapping[str, str]) -> None:
    """A variable that is one slip away from one of ours would be ignored without a word."""
    for name in env:
        prefix = next((prefix for prefix in _AFTER_PREFIX if name.startswith(prefix)), "")
        if not prefix or name in (*REQUEST_VARIABLES, *_NRL_VARIABLES, *OTHER_VARIABLES):
            continue
        ours = _AFTER_PREFIX[prefix]
        near = closest(name.removeprefix(prefix), ours, cutoff=0.8)
        if near:
            whose = "NeMo RL" if prefix == "NRL_" else "rlprof"
            text = f"is not a variable of {whose}. Did you mean {ours[near]!r}?"
            reader.problems.append(Problem(text, name))


def nrl_captures(reader: Reader, env: Mapping[str, str]) -> list[tuple[dict[str, Any], dict[str, str]]]:
    """NeMo RL's variables as captures with the origin of each field (its docs nsys-profiling, torch
    profiler).
    """
    found = []
    for backend, range_name in env_names.NRL_STEP_RANGE.items():
        patterns_name = env_names.NRL_WORKER_PATTERNS[backend]
        patterns, steps = env.get(patterns_name, "").strip(), env.get(range_name, "").strip()
        if bool(patterns) != bool(steps):
            have, miss = (patterns_name, range_name) if patterns else (range_name, patterns_name)
            reader.problems.append(Problem(f"is set, but {miss} is not; set both or neither", have))
        if not patterns or not steps:
            continue
        nrl_range(reader, range_name, steps)
        if backend == "torch":  # "from the controller and workers", whatever the patterns of workers are
            patterns += f",{LEADERS[1]}"
        capture: dict[str, Any] = {"backend": backend, "workers": patterns, "steps": steps}
        origins = {"": range_name, "backend": range_name, "workers": patterns_name, "steps": range_name}
        extra_name = env_names.NRL_EXTRA_OPTIONS.get(backend, "")
        if env.get(extra_name, "").strip():
            capture["options"] = json_object(reader, extra_name, env[extra_name])
            origins["options"] = extra_name
        found.append((capture, origins))
    return found


def nrl_range(reader: Reader, name: str, text: str) -> bool:
    """NeMo RL's strict `start:stop`; its error classes, each with a fix. True when it is one."""
    from rlprof_ops.request.problems import RequestError
    from rlprof_ops.request.steps import Steps

    count = len(reader.problems)
    try:
        Steps.parse(text)
    except RequestError as error:
        reader.problems.extend(Problem(problem.message, name) for problem in error.problems)
    else:
        if not re.fullmatch(r"\s*\+?[0-9]+\s*:\s*\+?[0-9]+\s*", text, re.ASCII):
            reader.problems.append(Problem(f"{shown(text)} is not allowed here: {NRL_RULES}", name))
    return len(reader.problems) == count


def origins_of(prefix: Path, data: Mapping[str, Any], origin: Mapping[str, str]) -> dict[Path, str]:
    """Paths of a capture's fields -> the variable that gave each."""
    return {prefix: origin.get("", "")} | {(*prefix, name): origin.get(name, "") for name in data}
