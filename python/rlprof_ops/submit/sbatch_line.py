"""From what a person asks to one sbatch line and its environment, checked and shown; nothing is sent here."""

from __future__ import annotations

import os
import re
import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from rlprof_ops import backends, env_names
from rlprof_ops.errors import UsageError
from rlprof_ops.job import attempt
from rlprof_ops.job.knobs import Settings, home, read_knobs
from rlprof_ops.job.site import Site, likely_misspelt, read_site
from rlprof_ops.redact import MASK, is_secret_name, redact_text
from rlprof_ops.request import ProfileRequest, load_request
from rlprof_ops.request.environ import REQUEST_VARIABLES
from rlprof_ops.request.yaml_file import nearest_file
from rlprof_ops.slurm import sbatch_options
from rlprof_ops.trainers.dialects import Framework, Remarks, select
from rlprof_ops.words import did_you_mean

# What a job is given of the shell it was submitted from. Anything else is asked for by name, with --set.
FROM_SHELL = (
    "HOME",
    "USER",
    "LOGNAME",
    "SHELL",
    "PATH",
    "LANG",
    "LANGUAGE",
    "TZ",
    "SLURM_CONF",
    "SLURM_CONF_SERVER",
    "SLURM_CLUSTERS",
    "XDG_STATE_HOME",
)
_LOCALE = re.compile(r"LC_[A-Z]+")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_OFTEN_MEANT = ("LD_LIBRARY_PATH", "PYTHONPATH", "WANDB_API_KEY", "HF_TOKEN", "HF_HOME", "CUDA_HOME")


@dataclass(frozen=True)
class SubmitRequest:
    """What the command line says.

    `sbatch`: words for sbatch; `command`: a line for bash, None for an interactive cluster; `knobs`: knobs
    and further variables by name; `from_shell`: those of them whose value came from this shell; `overrides`:
    of the request.
    """

    sbatch: tuple[str, ...] = ()
    command: str | None = None
    knobs: Mapping[str, str] = field(default_factory=dict)
    from_shell: frozenset[str] = frozenset()
    overrides: Mapping[str, str | None] = field(default_factory=dict)
    request: ProfileRequest | None = None
    framework: str | None = None
    retry_of: str = ""


@dataclass(frozen=True)
class Submission:
    """What will be run. `argv` is the sbatch line, `env` its whole environment, `base` the folder of the
    run folder.
    """

    argv: tuple[str, ...]
    env: Mapping[str, str]
    settings: Settings
    request: ProfileRequest
    base: Path
    asked: SubmitRequest
    explicit: Mapping[str, str]
    notes: tuple[str, ...] = ()

    def run_folder(self, job: str) -> Path:
        return self.base / attempt.folder_name(job)

    def shown_env(self) -> dict[str, str]:
        """The environment without secrets."""
        return {
            name: MASK if is_secret_name(name) and value else redact_text(value, self.env)
            for name, value in sorted(self.env.items())
        }

    def shown_argv(self) -> list[str]:
        return [redact_text(word, self.env) for word in self.argv]

    def shown(self) -> str:
        """One line for bash that does the same; secrets are masked."""
        variables = " \\\n    ".join(
            shlex.quote(f"{name}={value}") for name, value in self.shown_env().items()
        )
        return f"env -i \\\n    {variables} \\\n    {shlex.join(self.shown_argv())}"


def command_line(argv: Sequence[str]) -> str:
    """The words after `--` as a line for bash, each as it was given.

    Raises UsageError for one word that is a whole shell line: bash would look for a program of that name.
    """
    if len(argv) == 1 and re.search(r"[\s;&|]", argv[0]) and not os.path.exists(argv[0]):
        raise UsageError(
            f"{argv[0]!r} is one word, so it would be the name of a program. Give the words of the command"
            f" without quotes around them, or a line for a shell: -- bash -c {shlex.quote(argv[0])}"
        )
    return shlex.join(argv)


def parse_settings(words: Sequence[str], env: Mapping[str, str]) -> tuple[dict[str, str], frozenset[str]]:
    """`NAME=value`, or `NAME` alone for its value in `env`. Gives the values and the names that came from
    `env`.

    Raises UsageError for a name that no shell has, one that is not set, and a misspelt RLPROF_ knob.
    """
    knobs = read_knobs()
    found: dict[str, str] = {}
    taken = set()
    for word in words:
        name, equals, value = word.partition("=")
        if not _NAME.fullmatch(name):
            raise UsageError(f"--set {word}: {name!r} is no name of a variable; write --set NAME=value")
        if name.startswith(("SLURM_", "SBATCH_")):
            raise UsageError(
                f"--set {name}: give sbatch's own option instead, or the line {name}=… in the site's file"
            )
        if name.startswith("RLPROF_") and name not in knobs:
            hint = did_you_mean(name, knobs)
            raise UsageError(f"--set {name}: no such knob.{hint} All knobs: docs/knobs.md")
        if not equals:
            if name not in env:
                raise UsageError(f"--set {name}: not set in this shell; write --set {name}=value")
            value = env[name]
            taken.add(name)
        found[name] = value
    return found, frozenset(taken)


def prepare(asked: SubmitRequest, env: Mapping[str, str], cwd: Path) -> Submission:
    """Check everything that can be checked here. Raises UsageError (RequestError) with all mistakes of a
    kind.
    """
    site = read_site(env)
    explicit = dict(asked.knobs)
    slips = [f"--set {name}: {name} {text}" for name, text in likely_misspelt(explicit).items()]
    if site.named:
        explicit["RLPROF_SITE_ENV"] = str(site.path)
    notes = [*slips, *site.warnings, *_python(explicit, site)]
    for name in ("BASE_LOG_DIR", env_names.REQUEST, "RLPROF_OUTPUT_DIR", *env_names.NRL_FOLDER.values()):
        if explicit.get(name):
            explicit[name] = str(cwd / Path(explicit[name]).expanduser())
    settings = Settings.load(explicit)
    request = asked.request or _request(asked, explicit, settings)
    notes += request.notes
    if asked.framework and not settings["RLPROF_TRAINER"]:
        name = trainer_file(asked.framework, request)
        if Path(home(), "env", f"trainer_{name}.env").is_file():  # a trainer of a wheel has none
            explicit["RLPROF_TRAINER"] = name
            settings = Settings.load(explicit)
    command = asked.command if asked.command is not None else settings["COMMAND"]
    if asked.framework:
        theirs, request, remarks = _sides(asked.framework, request, settings.flag(env_names.ADAPTERS))
        notes += remarks
        command, remarks = in_trainers_words(asked.framework, theirs, command)
        notes += remarks
    job_env = {**explicit, **_carried(request, explicit, settings)}
    job_env["COMMAND"] = command
    job_env[env_names.HOME] = str(home())
    argv = _argv(asked.sbatch, site)
    notes += [*_short_limit(argv, site), *_left_behind(env, job_env)]
    return Submission(
        argv=argv, env={**_base_env(env), **site.sbatch_env, **job_env}, settings=settings, request=request,
        base=cwd / (settings.path("BASE_LOG_DIR") or ""), asked=asked, explicit=explicit, notes=tuple(notes),
    )  # fmt: skip


def _base_env(env: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in env.items() if name in FROM_SHELL or _LOCALE.fullmatch(name)}


def _python(explicit: dict[str, str], site: Site) -> Iterator[str]:
    """Without another choice a job uses the virtual environment that rlprof itself runs in; said, since it
    is a guess.
    """
    chosen = ("RLPROF_VENV", "RLPROF_PYTHON", "CONTAINER")
    if any(name in explicit or site.values.get(name) for name in chosen) or sys.prefix == sys.base_prefix:
        return
    explicit["RLPROF_VENV"] = sys.prefix
    yield (
        f"the job uses the virtual environment of this rlprof, {sys.prefix}; every node has to see it (--set"
        " RLPROF_VENV=… for another)"
    )


def _request(asked: SubmitRequest, explicit: Mapping[str, str], settings: Settings) -> ProfileRequest:
    asks = {name: settings[name] for name in REQUEST_VARIABLES if settings.values.get(name)}
    others = {name: value for name, value in explicit.items() if name.startswith("NRL_")}
    file = explicit.get(env_names.REQUEST)
    if file and not os.path.exists(file):
        typed = asked.knobs[env_names.REQUEST]
        raise UsageError(f"--request {typed}: there is no such file.{nearest_file(file)}")
    return load_request(file or None, {**others, **asks}, asked.overrides)


def _carried(request: ProfileRequest, explicit: dict[str, str], settings: Settings) -> dict[str, str]:
    """The checked request as one variable, and every other way to ask closed: the job gets what was shown
    here.
    """
    closed = {name: "" for name in REQUEST_VARIABLES if settings.values.get(name)}
    for name in list(explicit):
        asks = name.startswith("NRL_") and ("PROFILE" in name or "NSYS" in name)
        if asks and name not in env_names.NRL_FOLDER.values():  # ray.sub mounts that one
            del explicit[name]
    if isinstance(request.output_dir, str):  # for its mount into a container
        closed["RLPROF_OUTPUT_DIR"] = request.output_dir
    if not request.captures and request.steps_from is None:
        return closed
    return {**closed, env_names.REQUEST_JSON: request.to_json()}


def _argv(words: tuple[str, ...], site: Site) -> tuple[str, ...]:
    named = sbatch_options.names_of([*site.sbatch_args, *words])
    name = (
        [] if named & {"-J", "--job-name"} or "SBATCH_JOB_NAME" in site.sbatch_env else ["--job-name=rlprof"]
    )
    return ("sbatch", "--parsable", "--export=ALL", *name, *site.sbatch_args, *words, str(home() / "ray.sub"))


def _short_limit(argv: Sequence[str], site: Site) -> Iterator[str]:
    """Slurm signals a job whose limit is no longer than the signal's lead as soon as it starts."""
    limit = sbatch_options.value_of(argv, "--time", "-t") or site.sbatch_env.get("SBATCH_TIMELIMIT", "")
    seconds = sbatch_options.seconds_of(limit)
    lead = re.search(
        r"@(\d+)$", sbatch_options.value_of(argv, "--signal") or site.sbatch_env.get("SBATCH_SIGNAL", "@120")
    )
    if seconds and lead and seconds - int(lead[1]) < 120:
        left = max(0, seconds - int(lead[1]))
        yield (
            f"--time={limit} leaves {left} s until the job is told to drain, {lead[1]} s before its limit"
            " (--signal); give it more"
        )


def _left_behind(env: Mapping[str, str], job_env: Mapping[str, str]) -> Iterator[str]:
    """Variables of this shell that a person may believe to count."""
    ways = {*read_knobs(), *_OFTEN_MEANT} - {env_names.HOME, "RLPROF_SITE_ENV", "RLPROF_VENV"}
    names = sorted(
        name
        for name in env
        if (name in ways or name.startswith(("NRL_", "SBATCH_"))) and env[name] and name not in job_env
    )
    if names:
        yield f"set in this shell and not given to the job: {', '.join(names)} (--set NAME gives one)"


def trainer_file(framework: str, request: ProfileRequest) -> str:
    """The env/trainer_*.env of a dialect; NeMo RL's Megatron workers need library folders that the others
    do not.
    """
    if framework != "nemo_rl":
        return framework.partition("-")[0]
    from rlprof_ops import trainers

    megatron = "\nexport LD_LIBRARY_PATH=" in trainers.get(framework).render(request, "env").text
    return "nemo_rl_megatron" if megatron else framework


def _sides(
    framework: str, request: ProfileRequest, adapters: bool
) -> tuple[ProfileRequest, ProfileRequest, list[str]]:
    """Who takes each capture: the request that the trainer's own words say, the one that the job carries, and
    remarks. What both could open in a worker (torch, memory) ours takes where its adapters see the steps,
    else the trainer does.
    """
    from rlprof_ops import trainers

    in_process = {each.name for each in backends.every() if not each.wrap}
    others = tuple(spec for spec in request.captures if spec.backend not in in_process)
    both = sorted({spec.backend for spec in request.captures} & in_process)
    if not both:
        return request, request, []
    what, title = " and ".join(both), trainers.get(framework).title
    if adapters:
        remark = (
            f"{what} captures are taken by rlprof, whose adapters see {title}'s steps: its own settings for"
            " them are left out of the command (--set RLPROF_ADAPTERS=0 leaves them to the trainer)"
        )
        return replace(request, captures=others), request, [remark]
    remark = (
        f"{what} captures are taken by {title} itself, since RLPROF_ADAPTERS=0: its reports go to profiles/"
        " of the run folder, and the manifest lists them as not planned"
    )
    return request, replace(request, captures=others), [remark]


# Stands for the job's run folder in a rendering, until the shell of the job knows it.
_RUN_FOLDER = "RLPROF-RUN-FOLDER"


def in_trainers_words(framework: str, request: ProfileRequest, command: str) -> tuple[str, list[str]]:
    """`command` with the trainer's own settings for `request`: exports before it, or Hydra overrides after
    it. What a trainer writes itself goes below `profiles/` of the run folder, unless the request names a
    folder.

    Gives the line and remarks: what the trainer cannot do, what to know. Raises UsageError without a command,
    and where the request matches none of its workers.
    """
    from rlprof_ops import trainers

    if not command:
        raise UsageError(
            f"--framework {framework} adds the trainer's settings to its command; give it after `--`"
        )
    if not request.captures:
        return command, []
    dialect = trainers.get(framework)
    _some_worker(dialect, request)
    fmt = "env" if "env" in dialect.formats else "hydra"
    remarks = [f"{dialect.title} cannot do this: {loss}" for loss in dialect.render(request, fmt).losses]
    rendered = dialect.render(_in_run_folder(framework, request), fmt)
    words = shlex.split(rendered.text.replace("\\\n", " "), comments=True)
    if fmt == "env":
        exports = [word for word in words if word.startswith("NRL_")]
        return "".join(f"export {_shell_word(word, '')}\n" for word in exports) + command, remarks
    line = " ".join(_shell_word(word, "'") for word in words)
    return (f"{command} {line}" if words else command), remarks


def _some_worker(dialect: Framework, request: ProfileRequest) -> None:
    """Raise UsageError where no capture matches a worker of the trainer: its profilers would all be off."""
    remarks = Remarks()
    patterns = [pattern for spec in request.captures for pattern in spec.workers]
    if not select(patterns, dialect.workers, dialect.title, remarks):
        raise UsageError(
            f"{'; '.join(remarks.losses)} So every profiler of {dialect.title} would be off; for workers of"
            " your own leave out --framework"
        )


def _in_run_folder(framework: str, request: ProfileRequest) -> ProfileRequest:
    """The request with a folder for what the trainer writes by itself.

    nsys reports of NeMo RL and verl are Ray's, and come home as all others do.
    """
    own = framework == "rlinf" or any(not backends.wraps(spec.backend) for spec in request.captures)
    if request.output_dir is not None or not own:
        return request
    return replace(request, output_dir=f"{_RUN_FOLDER}/profiles")


def _shell_word(word: str, quote: str) -> str:
    """A word for bash, with `$RLPROF_RUN_DIR` where it names the run folder; `quote` is the trainer's own."""
    name, equals, value = word.partition("=")
    if not value.startswith(_RUN_FOLDER):
        return f"{name}={shlex.quote(value)}" if equals and not quote else shlex.quote(word)
    return f'"{name}={quote}$RLPROF_RUN_DIR{value.removeprefix(_RUN_FOLDER)}{quote}"'
