"""Tries the options of an nsys session before a worker is launched with them: a wrong one would restart it
for ever.
"""

from __future__ import annotations

import itertools
import os
import sys
from collections.abc import Mapping

from rlprof_ops.backends.contract import Options
from rlprof_ops.backends.nsight import nsys_cli, nsys_options
from rlprof_ops.backends.option_trial import Trials, trial_env

# launch, start and shutdown, as a worker and its step gate would; a session of its own for each, as nothing
# runs in them.
_SCRIPT = (
    'nsys=$1 session=$2 count=$3; shift 3; "$nsys" launch --session-new="$session-l" "${@:1:count}" true &&'
    ' "$nsys" start --session-new="$session-s" "${@:count+1}" -o "$TMPDIR/report" && "$nsys" shutdown'
    ' --kill=none --session="$session-s"'
)
_numbers = itertools.count()


async def reason_against(spec: Options, trials: Trials, env: Mapping[str, str]) -> str | None:
    """Why a session with the options of `spec` cannot be had on this node; None when it can, or when there
    is no nsys to ask.
    """
    nsys = nsys_cli.find(env)
    if nsys is None:
        return None
    if nsys_options.capture_range(spec):
        words = nsys_options.profile_words(spec, None, nsys)
        command = [nsys, "profile", *words, "-o", "{folder}/report", sys.executable, "-c", ""]
        return _said(
            words,
            await trials.reason_against(
                (nsys, "profile", *words), command, nsys_cli.client_env(trial_env()), tool=nsys
            ),
        )
    split = nsys_options.split_options(spec, nsys=nsys)
    session = f"rlprof-trial-{os.getpid()}-{next(_numbers)}"
    command = [
        "bash",
        "-c",
        _SCRIPT,
        "trial",
        nsys,
        session,
        str(len(split.launch)),
        *split.launch,
        *split.start,
    ]
    reason = await trials.reason_against(
        (nsys, *split.launch, "", *split.start), command, nsys_cli.client_env(trial_env()), tool=nsys
    )
    return _said([*split.launch, *split.start], reason)


def _said(words: list[str], reason: str | None) -> str | None:
    return None if reason is None else f"nsys does not take the options {' '.join(words)!r}: {reason}"
