"""A site's file, env/site.env or what RLPROF_SITE_ENV names: knobs, defaults of sbatch, variables of every
job.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from rlprof_ops.errors import UsageError
from rlprof_ops.job.knobs import home, ignored_lines, read_env_file, read_knobs
from rlprof_ops.slurm.sbatch_options import VARIABLES
from rlprof_ops.words import closest


@dataclass(frozen=True)
class Site:
    """What a site's file says. `path` is None without one; `named` when RLPROF_SITE_ENV chose it.

    `sbatch_env` are its SBATCH_* lines, sbatch's own variables; `sbatch_args` the words of
    RLPROF_SBATCH_ARGS.
    """

    path: Path | None = None
    named: bool = False
    values: Mapping[str, str] = field(default_factory=dict)
    sbatch_env: Mapping[str, str] = field(default_factory=dict)
    sbatch_args: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()


def read_site(env: Mapping[str, str]) -> Site:
    """The site that `env` chooses. Raises UsageError for a file that is not there and for a wrong SBATCH_*
    line.
    """
    chosen = env.get("RLPROF_SITE_ENV", "")
    path = Path(chosen).absolute() if chosen else home() / "env" / "site.env"
    if not path.is_file():
        if chosen:
            raise UsageError(
                f"RLPROF_SITE_ENV={chosen}: no such file. Copy {home() / 'env' / 'site.env.example'} and fill"
                " it in."
            )
        return Site()
    values = read_env_file(path)
    sbatch_env = {name: value for name, value in values.items() if name.startswith("SBATCH_")}
    for name in sbatch_env:
        _check_variable(path, name)
    try:
        words = shlex.split(values.get("RLPROF_SBATCH_ARGS", ""))
    except ValueError as error:
        raise UsageError(f"{path}: RLPROF_SBATCH_ARGS: {error}") from None
    return Site(path, bool(chosen), values, sbatch_env, tuple(words), _warnings(path, values))


def _check_variable(path: Path, name: str) -> None:
    if name not in VARIABLES:
        near = closest(name, VARIABLES)
        hint = f" Did you mean {near}?" if near else " Options without a variable go into RLPROF_SBATCH_ARGS."
        raise UsageError(f"{path}: {name}: not a variable that sbatch reads for rlprof.{hint}")


def _warnings(path: Path, values: Mapping[str, str]) -> tuple[str, ...]:
    """Likely misspellings of knobs, and lines that set nothing."""
    found = [f"{path}: {name} {text}" for name, text in likely_misspelt(values).items()]
    for number, line in ignored_lines(path):
        shown = line if "=" not in line else line.partition("=")[0] + "=…"  # it may hold a secret
        found.append(f"{path}:{number}: {shown!r} is not NAME=value, so it sets nothing")
    return tuple(found)


def likely_misspelt(names: Iterable[str]) -> dict[str, str]:
    """Names that are no knob but nearly one -> what to say of them: they would become variables of the job,
    and set nothing.
    """
    knobs = list(read_knobs())
    others = [name for name in names if name not in knobs and not name.startswith("SBATCH_")]
    near = {name: closest(name, knobs, cutoff=0.85) for name in others}
    said = "is no knob and becomes a variable of every job. Did you mean {}?"
    return {name: said.format(found) for name, found in near.items() if found}
