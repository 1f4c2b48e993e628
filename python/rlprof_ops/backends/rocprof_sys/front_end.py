"""rocprof-sys (AMD): how a Python worker is started under it, what its options and variables are, what it
writes.

Its front end `rocprof-sys-python` is a bash script that puts a folder on PYTHONPATH and runs `python -m
rocprofsys` through an unquoted `eval`, with an interpreter of its own choice (rocprofiler-systems,
cmake/Templates/console-script.in). What follows `--` must be a Python script, and whatever happens in it the
exit code is 0 (source/python/rocprofsys/__main__.py). So workers are started with `<their interpreter> -m
rocprofsys … --` here.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from rlprof_ops import env_names
from rlprof_ops.backends.contract import Asked, Verdict, Where
from rlprof_ops.backends.wrapping import CannotWrap
from rlprof_ops.words import did_you_mean

NAME, TITLE, SUFFIX = "rocprof_sys", "rocprof-sys", ".proto"
FRONT_END = "rocprof-sys-python"
RAY_WORDS = {"options": "args", "env": "env"}
# Options that take several values, each a word of its own (argparse nargs="+" or "*").
_SEVERAL = frozenset(
    ["label", "I", "E", "R", "MI", "ME", "MR", "function-include", "function-exclude", "function-restrict",
     "module-include", "module-exclude", "module-restrict"]
)  # fmt: skip
# The front end knows two-letter options with one dash.
_ONE_DASH = frozenset(["MI", "ME", "MR"])


@dataclass(frozen=True)
class FrontEnd:
    """An installed front end: the script, and the folder that holds its Python package."""

    script: str
    package_folder: str


class FrontEndError(CannotWrap):
    """rocprof-sys cannot start a worker on this node; the text says why."""


def find(env: Mapping[str, str] | None = None, version: tuple[int, int] = sys.version_info[:2]) -> FrontEnd:
    """The front end to use: `RLPROF_ROCPROF_SYS` when set, else `rocprof-sys-python` from PATH.

    `version` is the workers' Python, of which Ray allows one in a cluster: the bindings are built for some
    versions only. Raises `FrontEndError`.
    """
    env = os.environ if env is None else env
    chosen = env.get(env_names.ROCPROF_SYS)
    script = shutil.which(chosen or FRONT_END, path=env.get("PATH"))
    if script is None:
        looked = f"RLPROF_ROCPROF_SYS={chosen!r} is no program" if chosen else f"{FRONT_END} is not on PATH"
        raise FrontEndError(
            f"no rocprof-sys: {looked}; install rocprofiler-systems, or source its setup-env.sh before Ray"
            " starts"
        )
    folders = sorted(Path(os.path.realpath(script)).parents[1].glob("lib*/python*/site-packages/rocprofsys"))
    if not folders:
        raise FrontEndError(f"{script} has no Python package rocprofsys below {Path(script).parents[1]}")
    tag = f"cpython-{version[0]}{version[1]}-"
    built: set[str] = set()
    for folder in folders:
        bindings = [path.name for path in folder.glob("libpyrocprofsys.*.so")]
        if not bindings or any(tag in name for name in bindings):
            return FrontEnd(script, str(folder.parent))
        built.update(re.sub(r".*cpython-(\d)(\d+)-.*", r"\1.\2", name) for name in bindings)
    versions = ", ".join(sorted(built))
    raise FrontEndError(f"{script} is built for Python {versions}, but workers run {version[0]}.{version[1]}")


def render(options: Mapping[str, str | None]) -> list[str]:
    """The front end's words: `F`, `true` -> `-F true`; `trace-c`, `true` -> `--trace-c=true`; `label`,
    `args line` -> three words; None is a flag.
    """
    words: list[str] = []
    for name, value in options.items():
        if value is None or value == "":
            words.append(_dashed(name))
        elif name in _SEVERAL:
            words += [_dashed(name), *re.split(r"[,\s]+", value.strip())]
        elif len(name) == 1:
            words += [_dashed(name), value]
        else:
            words.append(f"{_dashed(name)}={value}")
    return words


def _dashed(name: str) -> str:
    return f"-{name}" if len(name) == 1 or name in _ONE_DASH else f"--{name}"


def variables(folder: str, stem: str, user: Mapping[str, str], windowed: bool = False) -> dict[str, str]:
    """The `ROCPROFSYS_*` variables of one worker; what `user` sets wins.

    `stem` names the trace, with %pid% for the process. Left to itself rocprof-sys adds a time and a pid of
    its own to the name, and does not record the ranges of torch and ours. `windowed`: nothing is recorded
    until the step gate says so.
    """
    derived = {
        "ROCPROFSYS_OUTPUT_PATH": folder,
        "ROCPROFSYS_OUTPUT_PREFIX": f"{stem}_",
        "ROCPROFSYS_TIME_OUTPUT": "false",
        "ROCPROFSYS_USE_PID": "false",
        "ROCPROFSYS_USE_ROCTX": "true",
    }
    if windowed:
        derived["ROCPROFSYS_INIT_ENABLED"] = "false"
    return {**derived, **user}


# Every option of the front end (its `--help`); it takes no abbreviation and ends with 2 on any other word.
OPTIONS = frozenset(
    [
        "v",
        "verbosity",
        "b",
        "builtin",
        "c",
        "config",
        "s",
        "setup",
        "F",
        "full-filepath",
        "label",
        "I",
        "function-include",
        "E",
        "function-exclude",
        "R",
        "function-restrict",
        "MI",
        "module-include",
        "ME",
        "module-exclude",
        "MR",
        "module-restrict",
        "trace-c",
        "a",
        "annotate-trace",
    ]
)


def validate(spec: Asked, where: Where) -> Verdict:
    """Options that the front end does not have, which a trial on the node refuses."""
    unknown = [name for name in (*spec.options, *spec.flags) if name not in OPTIONS]
    found = []
    for name in unknown:
        found.append(f"{FRONT_END} has no option {name!r}.{did_you_mean(name, sorted(OPTIONS))}")
    return Verdict(warnings=tuple(found))
