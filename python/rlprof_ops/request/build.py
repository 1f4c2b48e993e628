"""Plain data to a checked `ProfileRequest`: every problem is collected with the place its value was
written.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from rlprof_ops import backends
from rlprof_ops.request.model import EACH, ON_ERROR, CaptureSpec, ProfileRequest
from rlprof_ops.request.problems import Problem, RequestError, nearest, numbers_of_range, shown, words
from rlprof_ops.request.selectors import patterns_surely_overlap, ranks_overlap, split_words
from rlprof_ops.request.step_part import READERS, StepPart
from rlprof_ops.request.steps import Steps
from rlprof_ops.request.steps_from import EXAMPLE, STEPS_FROM_KEYS, StepsFrom, parse_rule
from rlprof_ops.request.when import WHEN_KEYS, When, parse
from rlprof_ops.words import truth

Path = tuple[Any, ...]

REQUEST_KEYS = ("captures", "enabled", "output_dir", "steps_from")
CAPTURE_KEYS = (
    "backend", "workers", "ranks", "steps", "each", "at", "after", "tokens", "for",
    "options", "flags", "env", "on_error", "when",
)  # fmt: skip
KEY_ALIASES = {
    "worker": "workers",
    "worker_groups": "workers",
    "worker_patterns": "workers",
    "roles": "workers",
    "rank": "ranks",
    "step": "steps",
    "profile_steps": "steps",
    "step_range": "steps",
    "tool": "backend",
    "discrete": "each",
    "offset": "at",
    "delay": "at",
    "begin": "at",
    "duration": "for",
    "length": "for",
    "seconds": "for",
    "args": "options",
    "capture": "captures",
    "enable": "enabled",
    "save_path": "output_dir",
    "log": "steps_from",
}
MAX_RANK = 10**7

_OPTION_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*", re.ASCII)
_BACKEND_NAME = re.compile(r"[a-z][a-z0-9_]{0,40}", re.ASCII)
_ENV_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)
_CONTROL = re.compile(r"[\x00-\x1f\x7f\ud800-\udfff]")  # one line that any terminal and file can take


@dataclass
class Reader:
    """Collects problems; knows where each value and each key was written."""

    values: Mapping[Path, str] = field(default_factory=dict)
    keys: Mapping[Path, str] = field(default_factory=dict)
    origin: str = ""
    problems: list[Problem] = field(default_factory=list)
    elsewhere: bool = False  # checked where it was written, which may have packages that this node lacks

    def at(self, path: Path) -> str:
        """Where the value at `path` was written, or the nearest thing around it."""
        while path:
            if path in self.values:
                return self.values[path]
            path = path[:-1]
        return self.values.get((), self.origin)

    def problem(self, path: Path, message: str) -> None:
        self.problems.append(Problem(message, self.at(path)))

    def unknown_key(self, path: Path, allowed: Sequence[str]) -> None:
        key = path[-1]
        where = self.keys.get(path) or self.at(path)
        near = nearest(key, allowed, KEY_ALIASES) if isinstance(key, str) else ""
        self.problems.append(Problem(f"unknown key {shown(key)}; allowed are {words(allowed)}.{near}", where))


def build(
    data: Any,
    values: Mapping[Path, str] | None = None,
    keys: Mapping[Path, str] | None = None,
    origin: str = "",
) -> ProfileRequest:
    """Check plain data in the YAML's form.

    Args:
        values, keys: path of keys and indices -> where that value / key was written.
        origin: for what has no place of its own.

    Raises:
        RequestError: with all problems.
    """
    return _finished(Reader(values or {}, keys or {}, origin), data)


def _finished(reader: Reader, data: Any) -> ProfileRequest:
    request = read_request(reader, data)
    if reader.problems:
        raise RequestError(reader.problems)
    return request


def build_from_json(text: str, origin: str) -> ProfileRequest:
    """Check a request's own JSON text, the inverse of `ProfileRequest.to_json`.

    Raises:
        RequestError: it is no JSON, or no request; with all problems.
    """
    import json

    try:
        data = json.loads(text)
    except (ValueError, RecursionError, TypeError) as error:
        raise RequestError([Problem(f"not JSON: {error}", origin)]) from None
    return _finished(Reader(origin=origin, elsewhere=True), data)


def read_request(reader: Reader, data: Any) -> ProfileRequest:
    if data is None:
        return ProfileRequest()
    if not isinstance(data, Mapping):
        reader.problem((), f"a request is a mapping with {words(REQUEST_KEYS)}, not {shown(data)}")
        return ProfileRequest()
    for key in data:
        if key not in REQUEST_KEYS:
            allowed = REQUEST_KEYS
            if key in CAPTURE_KEYS:
                reader.problem((key,), f"{key!r} belongs inside an entry of 'captures', not beside it")
            else:
                reader.unknown_key((key,), allowed)
    raw = data.get("captures")
    captures: list[CaptureSpec] = []
    if isinstance(raw, (list, tuple)):
        captures = [read_capture(reader, ("captures", i), entry) for i, entry in enumerate(raw)]
        _check_modes(reader, captures)
    elif raw is not None:
        hint = " put '- ' before its first line" if isinstance(raw, Mapping) else ""
        reader.problem(
            ("captures",), f"captures must be a list of captures, not {shown(raw)}{';' if hint else ''}{hint}"
        )
    enabled = _boolean(reader, ("enabled",), data.get("enabled", True))
    return ProfileRequest(
        tuple(captures),
        enabled,
        _output_dir(reader, data.get("output_dir")),
        _steps_from(reader, data.get("steps_from")),
    )


def _steps_from(reader: Reader, given: Any) -> StepsFrom | None:
    """The rule by which the driver's output tells steps; None for none."""
    path: Path = ("steps_from",)
    if given is None:
        return None
    if not isinstance(given, Mapping):
        reader.problem(path, f"steps_from must be a mapping such as {{log: '{EXAMPLE}'}}, not {shown(given)}")
        return None
    for key in given:
        if key not in STEPS_FROM_KEYS:
            reader.unknown_key((*path, key), STEPS_FROM_KEYS)
    known = {key: given[key] for key in given if key in STEPS_FROM_KEYS}
    return parse_rule(known, lambda key, text: reader.problem((*path, key), text), reader.elsewhere)


def _output_dir(reader: Reader, given: Any) -> str | dict[str, str] | None:
    """One folder, or one for each backend; None for none."""
    if given is None:
        return None
    folders = dict(given) if isinstance(given, Mapping) else {"": given}
    wrong = [
        path for path in folders.values() if not isinstance(path, str) or not path or _CONTROL.search(path)
    ]
    if wrong or not folders:
        reader.problem(
            ("output_dir",),
            "output_dir must be a folder's path, a mapping of backends to one each, or null, not"
            f" {shown(wrong[0] if wrong else given)}",
        )
        return None
    if isinstance(given, str):
        return given
    for name in [name for name in folders if not backends.is_known(str(name))]:
        reader.unknown_key(("output_dir", name), backends.names_allowed())
        return None
    return folders


def read_capture(reader: Reader, path: Path, data: Any) -> CaptureSpec:
    if not isinstance(data, Mapping):
        reader.problem(path, f"a capture is a mapping with {words(CAPTURE_KEYS)}, not {shown(data)}")
        return CaptureSpec()
    for key in data:
        if key not in CAPTURE_KEYS:
            reader.unknown_key((*path, key), CAPTURE_KEYS)

    def get(name: str, read: Callable[[Reader, Path, Any], Any], default: Any) -> Any:
        return read(reader, (*path, name), data[name]) if name in data else default

    if "workers" not in data:
        reader.problem(
            path, "workers is missing; name at least one worker or pattern, e.g. workers: ['*policy*']"
        )
    if "steps" not in data and "when" not in data:
        reader.problem(path, "steps is missing; say which steps, e.g. steps: '3:5', or null for none")
    options: dict[str, str] = get("options", _options, {})
    flags: tuple[str, ...] = get("flags", _flags, ())
    for name in sorted(set(options) & set(flags)):
        reader.problem((*path, "flags"), f"{name!r} is both in options and in flags; keep one")
    found = CaptureSpec(
        backend=get("backend", _backend, backends.DEFAULT),
        workers=get("workers", _workers, ()),
        ranks=get("ranks", _ranks, None),
        steps=get("steps", _steps, Steps()),
        each=get("each", _one_of(EACH), "step"),
        options=options,
        flags=flags,
        env=get("env", _environment, {}),
        on_error=get("on_error", _one_of(ON_ERROR), "continue"),
        when=get("when", _when, None),
        part=_part(reader, path, data),
        origins={"": reader.at(path)}
        | {str(key): reader.at((*path, key)) for key in data if key in CAPTURE_KEYS},
    )
    if found.each == "phase" and (many := found.steps.too_many_windows("each: phase")):
        reader.problem((*path, "steps"), many)
    if found.each == "phase" and found.when is not None and not reader.elsewhere:
        reader.problem(
            (*path, "each"),
            "each: phase is of steps; what `when` opens is the next whole step: leave one out",
        )
    if found.part is not None:
        _check_part(reader, path, found)
    return found


def _part(reader: Reader, path: Path, data: Mapping[str, Any]) -> StepPart | None:
    """What `at`, `after`, `tokens` and `for` say; None where a capture has none of them."""
    given = [name for name in READERS if data.get(name) is not None]
    part = StepPart()
    for name in given:
        try:
            part = replace(part, **READERS[name](data[name]))
        except ValueError as error:
            reader.problem((*path, name), str(error))
    if len(given) > 1 and (given[1] != "for" or part.ends_with):
        reader.problem((*path, given[1]), f"{' and '.join(given)} are two parts of a step; keep one of them")
    return part if given else None


def _check_part(reader: Reader, path: Path, spec: CaptureSpec) -> None:
    """A part of a step stands beside nothing that makes another window of it."""
    at = (*path, next(name for name in READERS if name in spec.origins))
    if spec.each == "phase":
        reader.problem(
            (*path, "each"),
            "each: phase has its own windows in a step, and at and for have another; for the first seconds of"
            " a phase write at: PHASE with for: and leave each out",
        )
    if spec.steps.is_open:
        reader.problem(
            (*path, "steps"),
            f"steps {shown(str(spec.steps))} have no end, and at and for make a window of each of them; name"
            " a stop",
        )
    elif many := spec.steps.too_many_windows("at, for"):
        reader.problem((*path, "steps"), many)
    if spec.when is not None:
        reader.problem(at, "at and for are of steps; what `when` opens is the next whole step: leave one out")


def _check_modes(reader: Reader, captures: Sequence[CaptureSpec]) -> None:
    """One process cannot be in step and in phase mode of one profiler: the inner stop would end the outer
    window.
    """
    for i, later in enumerate(captures):
        for earlier in captures[:i]:
            if later.backend != earlier.backend or later.each == earlier.each:
                continue
            if not (later.is_on and earlier.is_on and ranks_overlap(later.ranks, earlier.ranks)):
                continue
            shared = patterns_surely_overlap(earlier.workers, later.workers)
            if shared:
                reader.problem(
                    ("captures", i, "each"),
                    f"each: {later.each} for {shared!r} mixes with each: {earlier.each} of an earlier"
                    f" {later.backend} capture; one process takes one of them: use the same 'each', or other"
                    " ranks",
                )


def _backend(reader: Reader, path: Path, value: Any) -> str:
    if isinstance(value, str) and (
        backends.is_known(value) or (reader.elsewhere and _BACKEND_NAME.fullmatch(value))
    ):
        return value
    allowed = backends.names_allowed()
    aliases = {word: backend.name for backend in backends.every() for word in backend.aliases}
    near = nearest(value, allowed, aliases) if isinstance(value, str) else ""
    reader.problem(path, f"backend {shown(value)} is unknown; allowed are {words(allowed)}.{near}")
    return backends.DEFAULT


def _workers(reader: Reader, path: Path, value: Any) -> tuple[str, ...]:
    found: list[str] = []
    items = [value] if isinstance(value, str) else value
    if not isinstance(items, (list, tuple)):
        items = [] if value is None else [value]
    for i, item in enumerate(items):
        if not isinstance(item, str):
            reader.problem((*path, i), f"workers item {shown(item)} is not a worker name or pattern")
            return ("?",)
        found.extend(split_words(item))
    for word in found:
        if _CONTROL.search(word) or "/" in word or len(word) > 200:
            reader.problem(path, f"workers item {shown(word)} cannot be a worker name")
    if not found:
        reader.problem(path, "workers names no worker; name at least one worker or pattern, e.g. '*policy*'")
    return tuple(dict.fromkeys(found))


def _ranks(reader: Reader, path: Path, value: Any) -> tuple[int, ...] | None:
    if value is None:
        return ()
    if isinstance(value, str):
        if value.strip().lower() == "all":
            return None
        if value.strip().lower() in ("none", "null", "[]"):
            return ()
        meant = numbers_of_range(value) or [int(d[:9]) for d in re.findall(r"[0-9]+", value)[:8]]
        typed = reader.at(path).startswith(("--", "RLPROF_"))  # by a flag or a variable, which know no list
        listed = ",".join(map(str, meant or (0, 1))) if typed else str(meant or [0, 1])
        fix = f"write {listed}" if meant else f"write 'all' or {'' if typed else 'a list '}such as {listed}"
        reader.problem(path, f"ranks {shown(value)} is text; ranks are numbers: {fix}")
        return None
    if isinstance(value, int) and not isinstance(value, bool):
        value = [value]
    if not isinstance(value, (list, tuple)):
        reader.problem(path, f"ranks {shown(value)}: write 'all', a list such as [0, 1], or null for none")
        return None
    texts = [item for item in value if isinstance(item, str)]
    if texts:
        numbers = [item.strip() if isinstance(item, str) else str(item) for item in value]
        numeric = all(re.fullmatch("[0-9]{1,8}", n, re.ASCII) for n in numbers)
        fix = f"[{', '.join(str(int(n)) for n in numbers)}]" if numeric else "[0, 1]"
        reader.problem(
            (*path, value.index(texts[0])),
            f"ranks item {shown(texts[0])} is text; ranks are numbers: write {fix}",
        )
        return None
    for i, item in enumerate(value):
        if not isinstance(item, int) or isinstance(item, bool) or not 0 <= item <= MAX_RANK:
            reader.problem(
                (*path, i), f"ranks item {shown(item)} is not a rank; ranks are whole numbers from 0"
            )
            return None
    return tuple(sorted(set(value)))


def _steps(reader: Reader, path: Path, value: Any) -> Steps:
    try:
        return Steps.parse(value)
    except RequestError as error:
        for problem in error.problems:
            reader.problem(path, problem.message)
        return Steps()


def _one_of(allowed: Sequence[str]) -> Callable[[Reader, Path, Any], str]:
    def read(reader: Reader, path: Path, value: Any) -> str:
        if isinstance(value, str) and value in allowed:
            return value
        near = nearest(value, allowed) if isinstance(value, str) else ""
        reader.problem(path, f"{path[-1]} {shown(value)} is unknown; allowed are {words(allowed)}.{near}")
        return allowed[0]

    return read


def _when(reader: Reader, path: Path, value: Any) -> When | None:
    if value is None:
        return None
    if not isinstance(value, Mapping):
        reader.problem(path, f"when must be a mapping such as {{rank: slow}}, not {shown(value)}")
        return None
    for key in value:
        if key not in WHEN_KEYS:
            reader.unknown_key((*path, key), WHEN_KEYS)
    known = {key: value[key] for key in value if key in WHEN_KEYS}
    return parse(known, lambda key, text: reader.problem((*path, key) if key else path, text))


def _boolean(reader: Reader, path: Path, value: Any) -> bool:
    found = truth(str(value)) if isinstance(value, (str, int)) else None
    if found is not None:
        return found
    reader.problem(path, f"{path[-1]} must be true or false, not {shown(value)}")
    return False


def _options(reader: Reader, path: Path, value: Any) -> dict[str, str]:
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        reader.problem(path, f"options must be a mapping such as {{t: 'cuda,nvtx'}}, not {shown(value)}")
        return {}
    found: dict[str, str] = {}
    for name, raw in value.items():
        here = (*path, name)
        text = _scalar(raw)
        if not isinstance(name, str) or not _OPTION_NAME.fullmatch(name):
            bare = name.lstrip("-") if isinstance(name, str) else ""
            hint = f"; write {bare!r}, without dashes" if _OPTION_NAME.fullmatch(bare) else ""
            reader.problem(here, f"option name {shown(name)} is not a name{hint}")
        elif text is None:
            reader.problem(here, f"option {name!r} must be text, a number, true or false, not {shown(raw)}")
        elif _CONTROL.search(text):
            reader.problem(
                here,
                f"option {name!r} must be one line of text, not {shown(text)}: a profiler's command line"
                " takes no control character, and a trainer's settings no line break; write the value"
                " without it",
            )
        else:
            found[name] = text
    return found


def _flags(reader: Reader, path: Path, value: Any) -> tuple[str, ...]:
    items = list(split_words(value)) if isinstance(value, str) else [] if value is None else value
    if not isinstance(items, (list, tuple)):
        reader.problem(path, f"flags must be a list such as [python-backtrace], not {shown(value)}")
        return ()
    found = []
    for i, item in enumerate(items):
        if isinstance(item, str) and _OPTION_NAME.fullmatch(item):
            found.append(item)
        else:
            bare = item.lstrip("-") if isinstance(item, str) else ""
            hint = f"; write {bare!r}, without dashes" if _OPTION_NAME.fullmatch(bare) else ""
            reader.problem((*path, i), f"flag {shown(item)} is not a name{hint}")
    return tuple(dict.fromkeys(found))


def _environment(reader: Reader, path: Path, value: Any) -> dict[str, str]:
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        reader.problem(path, f"env must be a mapping of variables, not {shown(value)}")
        return {}
    found: dict[str, str] = {}
    for name, raw in value.items():
        text = _scalar(raw)
        if not isinstance(name, str) or not _ENV_NAME.fullmatch(name):
            reader.problem((*path, name), f"env name {shown(name)} is not a variable's name")
        elif text is None or _CONTROL.search(text):
            reader.problem((*path, name), f"env {name} must be one line of text, not {shown(raw)}")
        else:
            found[name] = text
    return found


def _scalar(value: Any) -> str | None:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (int, float)):
        try:
            return str(value)
        except ValueError:
            return None
    return value if isinstance(value, str) else None
