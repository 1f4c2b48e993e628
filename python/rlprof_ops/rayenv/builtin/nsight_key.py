"""What Ray's `nsight` runtime-env key means once repaired: the command, the report's name, the trial of
its options.
"""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlprof_ops import env_names
from rlprof_ops.backends import names, nsight
from rlprof_ops.rayenv.worker_selection import Identity, Selection, identify, select
from rlprof_ops.rayenv.wrap.nsys_command import (
    NsysCommand,
    job_tmpdir,
    patience_s,
    report_output,
    session_command,
)
from rlprof_ops.rayenv.wrap.rank_slots import RANK, numbered
from rlprof_ops.request import CaptureSpec
from rlprof_ops.runtime.clock_file import SOCKET

if TYPE_CHECKING:
    from rlprof_ops.request import CaptureSpec, ProfileRequest

# Ray's own meaning of "default" (ray/_private/runtime_env/nsight.py, NSIGHT_DEFAULT_CONFIG), without its
# output name.
_DEFAULT = {"t": "cuda,cudnn,cublas,nvtx", "stop-on-exit": "true"}


@dataclass(frozen=True)
class Wrap:
    """One worker's command, ready for the shell but for the interpreter that follows; `options` identify
    its trial.
    """

    identity: Identity
    nsys: str
    options: tuple[str, ...]
    output: str
    variables: Mapping[str, str]
    ranks: tuple[int, ...] | None = None
    on_error: str = "fail"

    def shell(self, py_executable: str) -> str:
        """Text for `bash -c "exec …"`. Every word is quoted but `py_executable`, which is shell text
        already.
        """
        options = (*self.options, "-o", self.output)
        patience = patience_s(os.environ)
        command = NsysCommand(
            "profile", self.nsys, options, self.variables, self.on_error, patience_s=patience
        )
        interpreter = py_executable or shlex.quote(sys.executable)
        if self.identity.base is None:
            return command.shell(interpreter)
        worker = self.identity.worker or names.NAMELESS
        taken = numbered(command.words(), interpreter, worker, self.identity.base, self.ranks, os.environ)
        return f"{command.settings()} {taken}"

    def apply(self, context: Any) -> None:
        context.py_executable = self.shell(context.py_executable)

    def trial(self) -> list[str]:
        return [self.nsys, "profile", *self.options, "-o", "{folder}/report", sys.executable, "-c", ""]


@dataclass(frozen=True)
class SessionWrap:
    """One worker in a session instead, where its trainer would open windows by cudaProfilerStart: the node's
    supervisor opens and closes them when the trainer calls, and each report is final while training goes on.
    """

    identity: Identity
    spec: CaptureSpec
    nsys: str

    def apply(self, context: Any) -> None:
        worker, rank = self.identity.worker or names.NAMELESS, self.identity.rank
        context.env_vars.update({env_names.WORKER: worker, env_names.RANK: "" if rank is None else str(rank)})
        command = session_command(self.identity, self.spec, os.environ, self.nsys)
        context.py_executable = command.shell(context.py_executable or shlex.quote(sys.executable))


def session_spec(
    options: Mapping[str, str | None], identity: Identity, env: Mapping[str, str]
) -> CaptureSpec | None:
    """The session that takes the place of a capture range opened by cudaProfilerStart; None where it cannot:
    another range, an engine's inner worker, or no supervisor on this node that opens windows.
    """
    opened_by = str(options.get("c") or options.get("capture-range") or "").lower()
    listening = os.path.exists(os.path.join(env.get(env_names.NODE_DIR, ""), SOCKET))
    if opened_by != "cudaprofilerapi" or identity.base is not None or not listening:
        return None
    kept = {name: value for name, value in options.items() if name not in nsight.OURS}
    return CaptureSpec(
        workers=(identity.worker or names.NAMELESS,),
        options={name: value for name, value in kept.items() if value is not None},
        flags=tuple(name for name, value in kept.items() if value is None),
    )


class ConfigError(ValueError):
    """The runtime env's `nsight` value makes no nsys command."""


def clean_options(config: Any) -> dict[str, str | None]:
    """Options by name without dashes; None is a bare flag.

    Trainers add quotes for the shell that Ray's stock plugin runs the words through; they mean what is
    inside. Raises `ConfigError` for a value of another kind and for an option given twice.
    """
    if config == "default":
        return dict(_DEFAULT)
    if not isinstance(config, Mapping):
        raise ConfigError(
            f'the runtime env\'s "nsight" is {config!r}: expected "default" or a mapping of nsys options'
        )
    options: dict[str, str | None] = {}
    for key, value in config.items():
        name = str(key).lstrip("-")
        name = "o" if name == "output" else name
        if not name or name in options:
            raise ConfigError(f"the nsys option {key!r} is {'given twice' if name else 'empty'}")
        options[name] = None if value is None or value == "" else _unquoted(_text(value))
    return options


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _unquoted(value: str) -> str:
    if len(value) >= 2 and value[0] == value[-1] and value[0] in "'\"" and value[0] not in value[1:-1]:
        return value[1:-1]
    return value


def selection_of(
    runtime_env: Mapping[str, Any], options: Mapping[str, str | None], request: ProfileRequest | None
) -> tuple[Identity, Selection]:
    identity = identify(runtime_env, options)
    return identity, select(identity, request, "nsight")


def make_wrap(
    options: Mapping[str, str | None],
    identity: Identity,
    spec: CaptureSpec | None,
    env: Mapping[str, str],
    session_folder: Path,
    nsys: str,
) -> Wrap:
    """The wrap of one worker. The folder of its report exists afterwards, or is made when the worker takes
    its rank.
    """
    rest = {name: value for name, value in options.items() if name != "o"}
    words: list[str] = []
    for name, value in rest.items():
        words += [nsight.render_flag(name)] if value is None else nsight.render_option(name, value)
    output = report_output(options.get("o"), identity, _window(identity, spec, rest), env, session_folder)
    if RANK not in os.path.dirname(output):
        os.makedirs(os.path.dirname(output), mode=0o700, exist_ok=True)
    return Wrap(
        identity,
        nsys,
        tuple(words),
        output,
        job_tmpdir(env),
        spec.ranks if spec else None,
        spec.on_error if spec else "fail",  # going on without what a trainer asked for would be a surprise
    )


def _window(identity: Identity, spec: CaptureSpec | None, options: Mapping[str, str | None]) -> Any | None:
    """The steps to name the report by: of the trainer's own name, or of a request's only window when there
    is a range.
    """
    if identity.window is not None or spec is None:
        return identity.window
    windows = spec.windows()
    ranged = any(name in options for name in ("c", "capture-range"))
    return windows[0] if ranged and len(windows) == 1 else None
