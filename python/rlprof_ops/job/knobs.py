"""The knobs of a job: read from env/defaults.env, checked once, passed on as a frozen `Settings`."""

from __future__ import annotations

import json
import os
import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from rlprof_ops import env_names
from rlprof_ops.errors import UsageError
from rlprof_ops.words import did_you_mean

# What the batch script alone can keep: its srun line, and the containers into which that leads.
OF_BATCH_SCRIPT = (
    "RLPROF_CONTAINER_RUNTIME",
    "CONTAINER",
    "MOUNTS",
    "RLPROF_CONTAINER_WRITABLE",
    "RLPROF_APPTAINER_ARGS",
    "RLPROF_SRUN_ARGS",
    "RLPROF_SBATCH_ARGS",
    "UV_CACHE_DIR_OVERRIDE",
)
WITHOUT_BATCH_SCRIPT = {"RLPROF_CONTAINER_RUNTIME": "none"}

_DESCRIPTION = re.compile(r"#: (?P<kind>[^|]*(?:\|[^| ][^|]*)*?) \| (?P<meaning>.*)")
_COUNT = re.compile(r"[0-9]{1,18}", re.ASCII)
_NUMBER = re.compile(r"[-+.0-9eE]{1,30}", re.ASCII)  # what Python and bash both take
_ASSIGNMENT = re.compile(r"(?P<name>[A-Za-z_][A-Za-z0-9_]*)=(?P<value>.*)")


def home() -> Path:
    """The folder that holds ray.sub, scripts/ and env/: RLPROF_HOME, a checkout, or the installed data."""
    named = os.environ.get(env_names.HOME)
    if named:
        return Path(named)
    here = Path(__file__).resolve()
    checkout = here.parents[3]
    if (checkout / "env" / "defaults.env").is_file():
        return checkout
    return here.parents[1] / "job_files"


def import_path() -> str:
    """A folder for PYTHONPATH that gives this package and nothing else; see setup.py for the installed
    one.
    """
    package = Path(__file__).resolve().parents[1]
    door = package / "job_files" / "python"
    return str(door if door.is_dir() else package.parent)


def adapters_path() -> str:
    """The folder for PYTHONPATH whose `sitecustomize` brings the adapters into every Python of a job."""
    return str(Path(__file__).resolve().parents[1] / "trainers" / "inject")


def python_path(before: str | None, adapters: bool = True) -> str:
    """PYTHONPATH of a job's processes: the adapters, this package, and what was there before."""
    own = [adapters_path()] if adapters else []
    kept = [
        folder
        for folder in (before or "").split(os.pathsep)
        if folder not in (adapters_path(), import_path())
    ]
    return os.pathsep.join(filter(None, [*own, import_path(), *kept]))


@dataclass(frozen=True)
class Knob:
    """One line of defaults.env: `kind` is text, path, flag, port, `int A..B`, `float A..B` or `choice
    a|b`.
    """

    name: str
    kind: str
    meaning: str
    default: str
    section: str

    def problem(self, value: str) -> str | None:
        """Why `value` is not allowed, as one sentence, or None. Empty is allowed where the default is
        empty.
        """
        if value == "" and (self.default == "" or self.kind in ("text", "path")):
            return None
        word, _, rest = self.kind.partition(" ")
        if word == "flag":
            return None if value in ("0", "1") else self._says(value, "0 or 1")
        if word == "port":
            fine = _COUNT.fullmatch(value) and int(value) <= 65535
            return None if fine else self._says(value, "a port, 1 to 65535, or 0 to have one chosen")
        if word in ("int", "float"):
            return self._number_problem(value, word, rest)
        if word == "choice":
            return self._choice_problem(value, rest.split("|"))
        return None

    def _number_problem(self, value: str, word: str, bounds: str) -> str | None:
        low, high = bounds.split("..")
        try:
            number = int(value) if word == "int" else float(value)
            if not _NUMBER.fullmatch(value):
                raise ValueError(value)
        except ValueError:
            return self._says(value, f"a number from {low} to {high}")
        return (
            None
            if float(low) <= number <= float(high)
            else self._says(value, f"a number from {low} to {high}")
        )

    def _choice_problem(self, value: str, allowed: list[str]) -> str | None:
        if value in allowed:
            return None
        return self._says(value, " or ".join(allowed)) + did_you_mean(value, allowed)

    def _says(self, value: str, expected: str) -> str:
        return f"{self.name}={value!r}: expected {expected} ({self.meaning})."


def read_knobs(path: Path | None = None) -> dict[str, Knob]:
    """All knobs of defaults.env by name, in the file's order. A knob without its `#:` line is a
    ValueError.
    """
    path = path or home() / "env" / "defaults.env"
    knobs: dict[str, Knob] = {}
    kind = meaning = ""
    section = "General"
    for line in path.read_text(encoding="utf-8").splitlines():
        if line.startswith("## "):
            section = line[3:]
        elif described := _DESCRIPTION.fullmatch(line):
            kind, meaning = described["kind"], described["meaning"]
        elif assigned := _ASSIGNMENT.fullmatch(line):
            if not kind:
                raise ValueError(f"{path}: {assigned['name']} has no '#: kind | meaning' line above it")
            knobs[assigned["name"]] = Knob(assigned["name"], kind, meaning, assigned["value"], section)
            kind = ""
    return knobs


def read_env_file(path: Path) -> dict[str, str]:
    """NAME=value lines, taken literally: nothing in such a file is run or expanded. The first line of a name
    counts, as for scripts/lib/knobs.sh.
    """
    found: dict[str, str] = {}
    for line in _lines(path):
        if match := _ASSIGNMENT.fullmatch(line):
            found.setdefault(match["name"], match["value"])
    return found


def ignored_lines(path: Path) -> list[tuple[int, str]]:
    """Lines, with their numbers, that are neither NAME=value nor a comment nor empty: `export FOO=1`."""
    return [
        (number, line)
        for number, line in enumerate(_lines(path), start=1)
        if line.strip() and not line.lstrip().startswith("#") and not _ASSIGNMENT.fullmatch(line)
    ]


def _lines(path: Path) -> list[str]:
    """Lines as bash reads them: only a newline ends one, a carriage return before it is no part of it, and
    bytes that are no UTF-8 stay what they are.
    """
    return [
        line.removesuffix("\r") for line in path.read_bytes().decode("utf-8", "surrogateescape").split("\n")
    ]


def filled(env: Mapping[str, str]) -> dict[str, str]:
    """`env`, and every line of the site's and the trainer's file and every default whose name it has not: the
    variables of a job, as `knobs::load` of scripts/lib/knobs.sh exports them.

    Raises UsageError for a file that was named and cannot be read.
    """
    site = env.get("RLPROF_SITE_ENV")
    if site and not os.access(site, os.R_OK):
        raise UsageError(f"RLPROF_SITE_ENV={site}: cannot be read.")
    return _merged(env)


@dataclass(frozen=True)
class Settings:
    """The checked knobs. `settings["PORT"]` is text; `int`, `flag`, `path` give it a type."""

    values: Mapping[str, str]

    @classmethod
    def load(cls, env: Mapping[str, str]) -> Settings:
        """Merge `env` over site, trainer and defaults; all bad values are named in one UsageError."""
        knobs, merged = read_knobs(), _merged(env)
        values = {name: merged[name] for name in knobs}
        problems = [text for name, knob in knobs.items() if (text := knob.problem(values[name]))]
        problems += _combination_problems(values)
        if problems:
            raise UsageError("\n".join(problems))
        return cls(values)

    def __getitem__(self, name: str) -> str:
        return self.values[name]

    def number(self, name: str) -> int:
        return int(self.values[name] or 0)

    def flag(self, name: str) -> bool:
        return self.values[name] == "1"

    def path(self, name: str) -> Path | None:
        return Path(self.values[name]).expanduser() if self.values[name] else None


def _merged(env: Mapping[str, str]) -> dict[str, str]:
    """The defaults, under the trainer's file, under the site's, under `env`."""
    folder = home() / "env"
    values = {name: knob.default for name, knob in read_knobs().items()}
    site = Path(env.get("RLPROF_SITE_ENV") or folder / "site.env")
    chosen = {**(read_env_file(site) if site.is_file() else {}), **env}
    if trainer := chosen.get("RLPROF_TRAINER"):
        trainer_file = folder / f"trainer_{trainer}.env"
        if "/" in trainer or not trainer_file.is_file():
            known = sorted(file.stem.removeprefix("trainer_") for file in folder.glob("trainer_*.env"))
            hint = did_you_mean(trainer, known)
            raise UsageError(f"RLPROF_TRAINER={trainer!r}: expected one of {', '.join(known)}.{hint}")
        values |= read_env_file(trainer_file)
    return values | chosen


def _combination_problems(values: Mapping[str, str]) -> Iterator[str]:
    for name in ("GPUS_PER_NODE", "CPUS_PER_WORKER", "RLPROF_OBJECT_STORE_BYTES"):
        if values[name] and not _COUNT.fullmatch(values[name]):
            yield f"{name}={values[name]!r}: expected a whole number, or nothing."
    for name in ("RLPROF_SRUN_ARGS", "RLPROF_APPTAINER_ARGS", "RLPROF_HARVEST_ARGS"):
        try:
            shlex.split(values[name])
        except ValueError as error:
            yield f"{name}={values[name]!r}: {error}; quote it as for a shell."
    if values["RLPROF_RAY_RESOURCES"]:
        try:
            resources = json.loads(values["RLPROF_RAY_RESOURCES"])
        except ValueError as error:
            resources = error
        if not isinstance(resources, dict):
            yield (
                f"RLPROF_RAY_RESOURCES={values['RLPROF_RAY_RESOURCES']!r}: expected a JSON object such as"
                ' {"fast_disk": 1}.'
            )
    lowest, highest = values["MIN_WORKER_PORT"], values["MAX_WORKER_PORT"]
    if (lowest == "0") != (highest == "0"):
        yield "MIN_WORKER_PORT and MAX_WORKER_PORT: set both or neither."
    elif _COUNT.fullmatch(lowest) and _COUNT.fullmatch(highest) and int(lowest) > int(highest):
        yield f"MIN_WORKER_PORT={lowest!r}: expected no more than MAX_WORKER_PORT={highest!r}."
    if not os.path.isabs(values["RLPROF_NODE_ROOT"]):
        yield f"RLPROF_NODE_ROOT={values['RLPROF_NODE_ROOT']!r}: expected an absolute path."
    if values["RLPROF_CONTAINER_RUNTIME"] in ("pyxis", "apptainer") and not values["CONTAINER"]:
        yield f"RLPROF_CONTAINER_RUNTIME={values['RLPROF_CONTAINER_RUNTIME']!r} needs an image in CONTAINER."


def reference() -> str:
    """docs/knobs.md: every knob of defaults.env as Markdown tables."""
    lines = [_INTRODUCTION]
    section = ""
    for knob in read_knobs().values():
        if knob.section != section:
            section = knob.section
            lines += ["", f"## {section}", "", "| knob | default | allowed | meaning |", "|---|---|---|---|"]
        default = f"`{knob.default}`" if knob.default else "empty"
        cells = (f"`{knob.name}`", default, knob.kind, knob.meaning)
        lines.append("| " + " | ".join(cell.replace("|", r"\|") for cell in cells) + " |")
    return "\n".join(lines) + "\n"


_INTRODUCTION = """\
# The knobs of a job

Set them in the environment of `sbatch`, or once for a site in `env/site.env`. Order of precedence: the
environment, then `env/site.env` (or the file that `RLPROF_SITE_ENV` names), then
`env/trainer_<RLPROF_TRAINER>.env`, then the default. Lines of these files are taken literally: nothing is
evaluated. A value that is not allowed ends the job before Ray starts, with the knob's name, its value and what
is allowed. Names that NeMo RL's `ray.sub` has mean the same here.

This page is made from `env/defaults.env` by `python -m rlprof_ops.job.knobs`."""

if __name__ == "__main__":
    print(reference(), end="")
