"""One loader for every way to ask: file (or RLPROF_REQUEST_JSON where no file is named) < NeMo RL's
variables < `RLPROF_*` < flags, each value with its origin.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from rlprof_ops import env_names
from rlprof_ops.request import environ
from rlprof_ops.request.build import (
    CAPTURE_KEYS,
    REQUEST_KEYS,
    Path,
    Reader,
    build_from_json,
    read_request,
)
from rlprof_ops.request.model import ProfileRequest
from rlprof_ops.request.problems import Problem, RequestError, nearest, words

FLAG_KEYS = (*CAPTURE_KEYS, "output_dir", "enabled")


def load(path: str | None, env: Mapping[str, str], overrides: Mapping[str, Any]) -> ProfileRequest:
    """See `rlprof_ops.request.load_request`. Captures come whole from the highest of: RLPROF_* , NRL_*, the
    file.

    Flags that name both workers and steps make the one capture; other flags change that field in every
    capture.

    Raises:
        RequestError: with every problem found, each at its place.
    """
    reader, notes = Reader(), list[str]()
    data, values, keys = _file_layer(path, env, reader)
    captures = _list(data.get("captures"))
    nrl = environ.nrl_captures(reader, env)
    twins = environ.twin_captures(reader, env)
    over = "RLPROF_STEPS and RLPROF_WORKERS" if twins else "NRL_*_STEP_RANGE" if nrl else ""
    if over and captures:
        notes.append(f"{over} replace the captures of {values.get((), 'the request file')}")
    if twins and nrl:
        dropped = (
            f"{name}={env[name].strip()}" for name in env_names.NRL_STEP_RANGE.values() if env.get(name)
        )
        notes.append(
            f"RLPROF_STEPS and RLPROF_WORKERS overrule NeMo RL's variables: {', '.join(dropped)} is dropped"
        )
    if twins:
        data, values, keys = _replace(
            data, values, keys, twins, [{n: environ.twin_origin(n) for n in ("", *twins[0])}]
        )
    elif nrl:
        data, values, keys = _replace(data, values, keys, [c for c, _ in nrl], [o for _, o in nrl])
    _nrl_folder(env, [] if twins else [capture["backend"] for capture, _ in nrl], data, values)
    for name, field in (("RLPROF_OUTPUT_DIR", "output_dir"), ("RLPROF_ENABLED", "enabled")):
        if env.get(name, "").strip():
            data[field], values[(field,)] = env[name].strip(), name
    rule = {key: env[name].strip() for name, key in environ.STEPS_FROM.items() if env.get(name, "").strip()}
    if rule:
        of_file = data.get("steps_from")
        data["steps_from"] = {**(of_file if isinstance(of_file, dict) else {}), **rule}
        values |= {("steps_from", key): name for name, key in environ.STEPS_FROM.items() if key in rule}
    _apply_flags(reader, data, values, overrides)
    checked = Reader(values, keys, origin=values.get((), ""))
    request = read_request(checked, data)
    seen = {(p.origin, p.message) for p in reader.problems}
    problems = reader.problems + [p for p in checked.problems if (p.origin, p.message) not in seen]
    if problems:
        raise RequestError(problems)
    return replace(request, notes=tuple(notes))


def _file_layer(
    path: str | None, env: Mapping[str, str], reader: Reader
) -> tuple[dict[str, Any], dict[Path, str], dict[Path, str]]:
    name = path or env.get(env_names.REQUEST, "").strip()
    if not name:
        carried = {(): env_names.REQUEST_JSON} if env.get(env_names.REQUEST_JSON) else {}
        return _carried_layer(env, reader), carried, {}
    from rlprof_ops.request.yaml_file import parse_yaml, read_file  # PyYAML takes 15 ms: only for a file

    try:
        data, values, keys = parse_yaml(read_file(name), name)
        if data is not None and not isinstance(data, dict):
            raise RequestError([Problem(f"a request is a mapping with {words(REQUEST_KEYS)}", name)])
    except RequestError as error:
        source = "" if path else " (named by RLPROF_REQUEST)"
        reader.problems.extend(Problem(p.message + source, p.origin) for p in error.problems)
        return {}, {}, {}
    return data or {}, values | {(): name}, keys


def _carried_layer(env: Mapping[str, str], reader: Reader) -> dict[str, Any]:
    """What `rlprof submit` has checked already and hands to the job whole: no file that may change or not
    be mounted.
    """
    if not env.get(env_names.REQUEST_JSON):
        return {}
    try:
        return build_from_json(env[env_names.REQUEST_JSON], env_names.REQUEST_JSON).to_dict()
    except RequestError as error:
        reader.problems.extend(error.problems)
        return {}


def _nrl_folder(
    env: Mapping[str, str],
    backends: list[str],
    data: dict[str, Any],
    values: dict[Path, str],
) -> None:
    """NRL_TORCH_PROFILE_DIR is the folder of the torch profiler alone; unset it is NeMo RL's default, unless
    the file names one.
    """
    for backend, name in env_names.NRL_FOLDER.items():
        given, before = env.get(name, "").strip(), data.get("output_dir")
        if backend not in backends or (not given and before is not None):
            continue
        folder = given or env_names.NRL_DEFAULT_FOLDER[backend]
        others = dict.fromkeys(backends, before) if isinstance(before, str) else before or {}
        data["output_dir"] = folder if backends == [backend] else {**others, backend: folder}
        values[("output_dir",)] = name


def _replace(
    data: dict[str, Any],
    values: dict[Path, str],
    keys: dict[Path, str],
    captures: list[dict[str, Any]],
    origins: list[dict[str, str]],
) -> tuple[dict[str, Any], dict[Path, str], dict[Path, str]]:
    """The request with other captures; what was written about the old ones is forgotten."""
    values = {p: v for p, v in values.items() if p[:1] != ("captures",)}
    keys = {p: v for p, v in keys.items() if p[:1] != ("captures",) or len(p) == 1}
    for i, (capture, origin) in enumerate(zip(captures, origins, strict=True)):
        values |= environ.origins_of(("captures", i), capture, origin)
    return {**data, "captures": captures}, values, keys


def _apply_flags(
    reader: Reader, data: dict[str, Any], values: dict[Path, str], overrides: Mapping[str, Any]
) -> None:
    given = {name: value for name, value in overrides.items() if value is not None}
    for name in [name for name in given if name not in FLAG_KEYS]:
        reader.problems.append(
            Problem(f"unknown field; allowed are {words(FLAG_KEYS)}.{nearest(name, FLAG_KEYS)}", flag(name))
        )
        del given[name]
    for name in ("output_dir", "enabled"):
        if name in given:
            data[name], values[(name,)] = given.pop(name), flag(name)
    if isinstance(given.get("ranks"), str):
        given["ranks"] = environ.ranks_text(given["ranks"])
    if not given:
        return
    captures = _list(data.get("captures"))
    if "steps" in given and "workers" in given:
        captures = [{}]
        for path in [p for p in values if p[:1] == ("captures",)]:
            del values[path]
        values[("captures", 0)] = flag("steps")
    elif not captures:
        missing = [name for name in ("workers", "steps") if name not in given]
        reader.problems.append(Problem(
            f"changes a capture, but there is none; give a request file, or also {words(map(flag, missing))}",
            flag(next(iter(given)))))  # fmt: skip
        return
    data["captures"] = [{**c, **given} if isinstance(c, dict) else c for c in captures]
    for i in range(len(captures)):
        for name in given:
            for path in [p for p in values if p[:3] == ("captures", i, name)]:
                del values[path]
            values[("captures", i, name)] = flag(name)


def flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []
