"""What Ray's `nsight` runtime-env key means once repaired: the command, the report's name, the trial of
its options.
"""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlprof_ops import env_names
from rlprof_ops.backends import report_names
from rlprof_ops.backends.contract import Spec
from rlprof_ops.backends.nsight import nsys_cli, nsys_trial
from rlprof_ops.backends.nsight.options import OURS, render_flag, render_option
from rlprof_ops.backends.nsight.rank_slots import RANK, numbered
from rlprof_ops.backends.nsight.wrap_worker import (
    NsysCommand,
    job_tmpdir,
    patience_s,
    report_output,
    session_command,
)
from rlprof_ops.backends.option_trial import Trials, trial_env
from rlprof_ops.backends.wrapping import CannotWrap, Given, Identity, clean_options

# Ray's own meaning of "default" (ray/_private/runtime_env/nsight.py, NSIGHT_DEFAULT_CONFIG), without its
# output name.
_DEFAULT = {"t": "cuda,cudnn,cublas,nvtx", "stop-on-exit": "true"}


@dataclass(frozen=True)
class ProfileWrap:
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
        worker = self.identity.worker or report_names.NAMELESS
        taken = numbered(command.words(), interpreter, worker, self.identity.base, self.ranks, os.environ)
        return f"{command.settings()} {taken}"

    def apply(self, context: Any) -> None:
        context.py_executable = self.shell(context.py_executable)

    def trial(self) -> list[str]:
        return [self.nsys, "profile", *self.options, "-o", "{folder}/report", sys.executable, "-c", ""]


@dataclass(frozen=True)
class SessionOptions:
    """What is left of a trainer's options for a session in their place."""

    options: Mapping[str, str]
    flags: Sequence[str]
    on_error: str = "continue"


@dataclass(frozen=True)
class SessionWrap:
    """One worker in a session instead, where its trainer would open windows by cudaProfilerStart: the node's
    supervisor opens and closes them when the trainer calls, and each report is final while training goes on.
    """

    identity: Identity
    spec: SessionOptions
    nsys: str

    def apply(self, context: Any) -> None:
        worker, rank = self.identity.worker or report_names.NAMELESS, self.identity.rank
        context.env_vars.update({env_names.WORKER: worker, env_names.RANK: "" if rank is None else str(rank)})
        command = session_command(self.identity, self.spec, os.environ, self.nsys)
        context.py_executable = command.shell(context.py_executable or shlex.quote(sys.executable))


def session_options(
    options: Mapping[str, str | None], identity: Identity, supervised: bool
) -> SessionOptions | None:
    """The session that takes the place of a capture range opened by cudaProfilerStart; None where it cannot:
    another range, an engine's inner worker, or no supervisor on this node that opens windows.
    """
    opened_by = str(options.get("c") or options.get("capture-range") or "").lower()
    if opened_by != "cudaprofilerapi" or identity.base is not None or not supervised:
        return None
    kept = {name: value for name, value in options.items() if name not in OURS}
    return SessionOptions(
        {name: value for name, value in kept.items() if value is not None},
        tuple(name for name, value in kept.items() if value is None),
    )


class NsightPlugin:
    """The protocol is `wrapping.RayPlugin`."""

    stock = "ray._private.runtime_env.nsight:NsightPlugin"
    known_names = (
        "nsight NSIGHT_DEFAULT_CONFIG _check_nsight_script _nsight_dir parse_nsight_config nsight_cmd"
    )

    def given(self, config: Any) -> Given:
        return Given(dict(_DEFAULT) if config == "default" else clean_options(config, "nsight"), {})

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
    ) -> ProfileWrap | SessionWrap:
        """Raises `CannotWrap`."""
        nsys = nsys_cli.find()
        if nsys is None:
            why = nsys_cli.why_missing(env)
            raise CannotWrap(f"no nsys: {why} (set RLPROF_NSYS, or install nsight-systems-cli)")
        session = session_options(given.options, identity, supervised)
        if session is not None:
            reason = await nsys_trial.reason_against(session, trials, env)
            if reason is not None:
                raise CannotWrap(reason)
            return SessionWrap(identity, session, nsys)
        wrap = make_wrap(given.options, identity, spec, env, folder, nsys)
        reason = await trials.reason_against(
            (nsys, *wrap.options), wrap.trial(), nsys_cli.client_env(trial_env())
        )
        if reason is not None:
            raise CannotWrap(f"`nsys profile {' '.join(wrap.options)}` does not work: {reason}")
        return wrap


PLUGIN = NsightPlugin()


def make_wrap(
    options: Mapping[str, str | None],
    identity: Identity,
    spec: Spec | None,
    env: Mapping[str, str],
    session_folder: Path,
    nsys: str,
) -> ProfileWrap:
    """The wrap of one worker. The folder of its report exists afterwards, or is made when the worker takes
    its rank.
    """
    rest = {name: value for name, value in options.items() if name != "o"}
    words: list[str] = []
    for name, value in rest.items():
        words += [render_flag(name)] if value is None else render_option(name, value)
    output = report_output(options.get("o"), identity, _window(identity, spec, rest), env, session_folder)
    if RANK not in os.path.dirname(output):
        os.makedirs(os.path.dirname(output), mode=0o700, exist_ok=True)
    return ProfileWrap(
        identity,
        nsys,
        tuple(words),
        output,
        job_tmpdir(env),
        tuple(spec.ranks) if spec and spec.ranks is not None else None,
        spec.on_error if spec else "fail",  # going on without what a trainer asked for would be a surprise
    )


def _window(identity: Identity, spec: Spec | None, options: Mapping[str, str | None]) -> Any | None:
    """The steps to name the report by: of the trainer's own name, or of a request's only window when there
    is a range.
    """
    if identity.window is not None or spec is None:
        return identity.window
    windows = spec.windows()
    ranged = any(name in options for name in ("c", "capture-range"))
    return windows[0] if ranged and len(windows) == 1 else None
