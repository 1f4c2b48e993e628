"""How a process is started under a profiler: what a backend's wrap is asked, and what it answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from rlprof_ops import env_names

if TYPE_CHECKING:
    from pathlib import Path

    from rlprof_ops.backends.contract import Spec
    from rlprof_ops.backends.option_trial import Trials


class CannotWrap(Exception):
    """A process cannot be started under the profiler on this node; the text says why."""


class ConfigError(ValueError):
    """What a trainer gave to Ray's own plugin of a profiler makes no command."""


@dataclass(frozen=True)
class Identity:
    """A worker as far as its runtime env tells. `window` is what NeMo RL writes into its output names.

    `base`: an inner worker of an engine, whose runtime env is that of its siblings too. It has no rank before
    it starts and takes the first free number on its node from `base` on, the rank of the actor that created
    it.
    """

    worker: str | None
    rank: int | None
    window: Any | None = None
    base: int | None = None

    def __str__(self) -> str:
        worker = "a worker without a name" if self.worker is None else f"worker {self.worker!r}"
        return worker if self.rank is None else f"{worker} rank {self.rank}"


@dataclass(frozen=True)
class Command:
    """What to run. `exit_code_file`: the tool hides the program's exit code, which is found there instead.
    `told_of_death`: the signal by which the tool ends its program when whoever runs it is gone; None: it is
    the program, or dies with it.
    """

    argv: tuple[str, ...]
    env: Mapping[str, str]
    exit_code_file: str | None = None
    told_of_death: int | None = None


def worker_variables(worker: str, rank: int | None) -> dict[str, str]:
    """How a process is told which worker and rank it is."""
    return {env_names.WORKER: worker, env_names.RANK: "" if rank is None else str(rank)}


class Wrapped(Protocol):
    """One process's command under a profiler."""

    def apply(self, context: Any) -> None:
        """Change a Ray worker's runtime-env context: `py_executable`, shell text, and `env_vars`."""

    def command(self, argv: Sequence[str], env: Mapping[str, str]) -> Command:
        """The same for a process that Ray does not start. Raises `CannotWrap`, and `UsageError` for a program
        that the tool cannot start.
        """


class Wrap(Protocol):
    """A backend's own way to start a process."""

    def make(self, identity: Identity, spec: Spec, env: Mapping[str, str], own: Mapping[str, str]) -> Wrapped:
        """The command of one process; the folder of its report exists afterwards.

        Args:
            env: the node's variables, with the job's.
            own: those of the process itself.

        Raises:
            CannotWrap: this node lacks the tool.
            UsageError: options that contradict each other.
        """

    async def reason_against(
        self, identity: Identity, spec: Spec, context: Any, trials: Trials, env: Mapping[str, str]
    ) -> str | None:
        """Why a worker of this context would not start with the options of `spec`, tried once on a node for
        the same options; None when it would, or when there is no tool to ask. Raises `CannotWrap`.
        """


@dataclass(frozen=True)
class Given:
    """What a trainer gave to Ray's own plugin: its options, and the variables and output name beside them."""

    options: Mapping[str, str | None]
    variables: Mapping[str, str]


class RayPlugin(Protocol):
    """What takes the place of Ray's own runtime-env plugin of a profiler, once that is repaired.

    Attributes:
        stock: `module:class` of Ray's plugin.
        known_names: all that the methods which are replaced may touch beside what every plugin does.
    """

    stock: str
    known_names: str

    def given(self, config: Any) -> Given:
        """The checked value of the key. Raises `ConfigError`."""

    async def prepare(
        self,
        given: Given,
        identity: Identity,
        spec: Spec | None,
        context: Any,
        trials: Trials,
        env: Mapping[str, str],
        folder: Path,
        supervised: bool,
    ) -> Wrapped:
        """A wrap that a trial has shown to work. `spec` is None when only the trainer asked; `folder` is for
        reports outside a job; `supervised`: a supervisor on this node opens windows of sessions.

        Raises `CannotWrap`.
        """


def clean_options(config: Any, key: str) -> dict[str, str | None]:
    """Options by name without dashes; None is a bare flag.

    Trainers add quotes for the shell that Ray's stock plugin runs the words through; they mean what is
    inside. Raises `ConfigError` for a value of another kind and for an option given twice.
    """
    if not isinstance(config, Mapping):
        raise ConfigError(
            f'the runtime env\'s "{key}" is {config!r}: expected "default" or a mapping of its options'
        )
    options: dict[str, str | None] = {}
    for given, value in config.items():
        name = str(given).lstrip("-")
        name = "o" if name == "output" else name
        if not name or name in options:
            raise ConfigError(f"the option {given!r} of {key} is {'given twice' if name else 'empty'}")
        options[name] = None if value is None or value == "" else _unquoted(_text(value))
    return options


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _unquoted(value: str) -> str:
    if len(value) >= 2 and value[0] == value[-1] and value[0] in "'\"" and value[0] not in value[1:-1]:
        return value[1:-1]
    return value
