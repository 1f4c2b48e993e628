"""What Ray's `nsight` runtime-env key means once repaired: the command, the report's name, the trial of
its options.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rlprof_ops import env_names
from rlprof_ops.backends import report_names
from rlprof_ops.backends.contract import Spec
from rlprof_ops.backends.nsight import nsys_cli, nsys_trial
from rlprof_ops.backends.nsight.nsys_options import (
    OURS,
    START_OPTIONS,
    capture_range,
    render_flag,
    render_option,
    split_flags,
)
from rlprof_ops.backends.nsight.nsys_wrap import (
    NsysCommand,
    begin_within_s,
    job_tmpdir,
    report_output,
    session_command,
)
from rlprof_ops.backends.nsight.rank_slots import RANK
from rlprof_ops.backends.option_trial import Trials, trial_env
from rlprof_ops.backends.wrapping import CannotWrap, Given, Identity, clean_options, worker_variables

# Ray's own meaning of "default" (ray/_private/runtime_env/nsight.py, NSIGHT_DEFAULT_CONFIG), without its
# output name.
_DEFAULT = {"t": "cuda,cudnn,cublas,nvtx", "stop-on-exit": "true"}


@dataclass(frozen=True)
class SessionOptions:
    """What is left of a trainer's options for a session in their place."""

    options: Mapping[str, str]
    flags: Sequence[str]
    on_error: str = "continue"


def session_options(
    options: Mapping[str, str | None], identity: Identity, spec: Spec | None, supervised: bool
) -> SessionOptions | None:
    """The session that takes the place of a capture range opened by cudaProfilerStart, or of a report of the
    whole life of an engine's inner worker that the request selects by name for windows of its own; None where
    it cannot: another range, or no supervisor on this node that opens windows. Any other worker keeps the
    report of its life: nobody may tell its steps.
    """
    opened_by = str(options.get("c") or options.get("capture-range") or "").lower()
    inner = identity.base is not None and identity.worker is not None
    selected = inner and spec is not None and capture_range(spec) is None
    if not supervised or not (opened_by == "cudaprofilerapi" or (selected and opened_by in ("", "none"))):
        return None
    kept = {name: value for name, value in options.items() if name not in OURS}
    return SessionOptions(*split_flags(kept), spec.on_error if spec is not None else "continue")


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
    ) -> NsysCommand:
        """Raises `CannotWrap`."""
        nsys = nsys_cli.find()
        if nsys is None:
            why = nsys_cli.why_missing(env)
            raise CannotWrap(f"no nsys: {why} (set RLPROF_NSYS, or install nsight-systems-cli)")
        session = session_options(given.options, identity, spec, supervised)
        if session is not None:
            reason = await nsys_trial.reason_against(session, trials, env)
            if reason is not None:
                raise CannotWrap(reason)
            own = worker_variables(identity.worker or report_names.NAMELESS, identity.rank)
            command = session_command(identity, session, os.environ, nsys)
            starts = {name: value for name, value in given.options.items() if name in START_OPTIONS}
            told = {env_names.SESSION_OPTIONS: json.dumps(starts)} if starts else {}
            variables = {**command.variables, **own, **told}
            return replace(command, variables=variables, numbered_from=_numbered(identity, spec))
        words = option_words(given.options)
        trial = [nsys, "profile", *words, "-o", "{folder}/report", sys.executable, "-c", ""]
        reason = await trials.reason_against(
            (nsys, *words), trial, nsys_cli.client_env(trial_env()), tool=nsys
        )
        if reason is not None:
            raise CannotWrap(f"`nsys profile {' '.join(words)}` does not work: {reason}")
        return profile_command(given.options, identity, spec, env, folder, nsys)


PLUGIN = NsightPlugin()


def option_words(options: Mapping[str, str | None]) -> list[str]:
    """Options of a trainer as words of the command line, its output apart, which gets a name of ours."""
    words: list[str] = []
    for name, value in options.items():
        if name != "o":
            words += [render_flag(name)] if value is None else render_option(name, value)
    return words


def profile_command(
    options: Mapping[str, str | None],
    identity: Identity,
    spec: Spec | None,
    env: Mapping[str, str],
    session_folder: Path,
    nsys: str,
) -> NsysCommand:
    """The command of one worker. The folder of its report exists afterwards, or is made when the worker takes
    its rank.
    """
    output = report_output(options.get("o"), identity, _window(identity, spec, options), env, session_folder)
    if RANK not in os.path.dirname(output):
        os.makedirs(os.path.dirname(output), mode=0o700, exist_ok=True)
    return NsysCommand(
        "profile",
        nsys,
        (*option_words(options), "-o", output),
        job_tmpdir(env),
        spec.on_error if spec else "fail",  # going on without what a trainer asked for would be a surprise
        begin_within_s=begin_within_s(os.environ),
        numbered_from=_numbered(identity, spec),
    )


def _numbered(identity: Identity, spec: Spec | None) -> tuple[str, int, Sequence[int] | None] | None:
    """Of an engine's inner workers, which take their ranks when they start: see `NsysCommand`."""
    if identity.base is None:
        return None
    return identity.worker or report_names.NAMELESS, identity.base, spec.ranks if spec else None


def _window(identity: Identity, spec: Spec | None, options: Mapping[str, str | None]) -> Any | None:
    """The steps to name the report by: of the trainer's own name, or of a request's only window when there
    is a range.
    """
    if identity.window is not None or spec is None:
        return identity.window
    windows = spec.windows()
    ranged = any(name in options for name in ("c", "capture-range"))
    return windows[0] if ranged and len(windows) == 1 else None
