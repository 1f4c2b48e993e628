"""A program as a child of nsys: tried again where nsys ends before the program has begun, then started
without it.

For Ray's workers `rayenv/wrap/command.py` does the same in bash: their interpreter need not have this
package.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import FrameType
from typing import NoReturn

from rlprof_ops.runtime.process.event_log import log

TRIES, _PAUSE_S = 3, 0.5
_PATIENCE_S = 20.0  # nsys starts a program within one to three
_TO_END = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
_HANDED_ON = (*_TO_END, signal.SIGUSR1, signal.SIGUSR2)


def run(
    nsys: Sequence[str], program: Sequence[str], env: Mapping[str, str], on_error: str = "continue"
) -> NoReturn:
    """Run `program` by the command line `nsys`, and end with its exit code. Signals are handed on.

    nsys 2023.4 ends once in a while on a busy machine before it has started the program ("Local Endpoint is
    not available", "End of file"), and no training should end of it: the program is started unprofiled in the
    end, unless `on_error` is "fail". Raises OSError when nsys or the program cannot be started at all.
    """
    env = dict(env)
    command = list(nsys)
    for number in range(1, TRIES + 1):
        end = _run_once(command, program, env)
        if end.began:
            sys.exit(_exit_code(end.status))
        if end.told is not None:  # to end, by whoever started us: then nothing is started any more
            sys.exit(128 + end.told)
        said = f"hung for {_PATIENCE_S:.0f} s" if end.hung else f"ended with {end.status}"
        log(f"`nsys {nsys[1]}` {said} before the program began (try {number} of {TRIES})")
        command = _with_another_session(command, env, number)
        time.sleep(_PAUSE_S)
    if on_error == "fail":
        sys.exit(_exit_code(end.status) or 1)
    log("training goes on unprofiled")
    for name in ("RLPROF_NSYS_SESSION", "RLPROF_NSYS_RANGE"):
        env.pop(name, None)
    env["RLPROF_NOT_WRAPPED"] = (
        f"`nsys {nsys[1]}` {said} before the program began, {TRIES} times; its own words are in the log"
    )
    os.execvpe(program[0], list(program), env)


def _exit_code(status: int) -> int:
    return status if status >= 0 else 128 - status


def _with_another_session(command: list[str], env: dict[str, str], number: int) -> list[str]:
    """What a failed nsys may have left is not met again."""
    old = env.get("RLPROF_NSYS_SESSION")
    if old is None:
        return command
    new = env["RLPROF_NSYS_SESSION"] = f"{old}-{number}"
    return [f"--session-new={new}" if word == f"--session-new={old}" else word for word in command]


@dataclass
class _End:
    """How one nsys ended: whether the program had begun, whether it was killed for hanging, the signal
    that told it to end.
    """

    status: int = 0
    began: bool = False
    hung: bool = False
    told: int | None = None


def _run_once(nsys: list[str], program: Sequence[str], env: dict[str, str]) -> _End:
    """Whoever takes the file `pending` away first decides: the program when it begins, or we; it then ends
    at once if it comes.
    """
    folder = env.get("TMPDIR", "")
    handle, pending = tempfile.mkstemp(
        prefix=".rlprof-pending-", dir=folder if os.path.isdir(folder) else None
    )
    os.close(handle)
    shell = ["/bin/sh", "-c", 'rm -- "$0" 2> /dev/null || exit 1; exec "$@"', pending, *program]
    end = _End()
    try:
        child = subprocess.Popen([*nsys, *shell], env=env)

        def hand_on(number: int, frame: FrameType | None) -> None:
            end.told = number if number in _TO_END else end.told
            child.send_signal(number)

        for number in _HANDED_ON:
            signal.signal(number, hand_on)
        try:
            end.status = child.wait(_PATIENCE_S)
        except subprocess.TimeoutExpired:
            end.hung = _taken(pending)
            if end.hung:
                child.kill()
            end.status = child.wait()
        for number in _HANDED_ON:
            signal.signal(number, signal.SIG_DFL)
        end.began = not end.hung and not _taken(pending)
        return end
    finally:
        _taken(pending)


def _taken(pending: str) -> bool:
    """Whether it was still there for us to take."""
    try:
        os.unlink(pending)
    except FileNotFoundError:
        return False
    return True
