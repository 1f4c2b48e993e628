"""`python -m rlprof_ops.runtime.launch [--worker NAME] PROGRAM …`: run a training process under nsys where the request wants it.

What the Ray plugin does for actors, for processes that another launcher starts (torchrun, srun, mpirun). A process that no
capture selects is started as it is. Example:

    torchrun --no-python --nproc-per-node 8 python -m rlprof_ops.runtime.launch --worker trainer python train.py
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import MutableMapping
from typing import NoReturn

from rlprof_ops.backends import names, nsight
from rlprof_ops.runtime.events import log

_HANDED_ON = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
_TRIES, _PAUSE_S = 3, 0.5
_USAGE = "usage: python -m rlprof_ops.runtime.launch [--worker NAME] PROGRAM [ARGUMENT …]"


def main(argv: list[str] | None = None) -> NoReturn:
    """Become the program, or run it under nsys and end with its exit code; exit code 1 for a wrong command line, 127 for no such program."""
    words = list(sys.argv[1:] if argv is None else argv)
    worker = "worker"
    if words[:1] == ["--worker"] and len(words) > 1:
        worker = words[1]
        words = words[2:]
    if words[:1] == ["--"]:
        words = words[1:]
    if not words or words[0].startswith("-"):
        sys.exit(_USAGE)
    program = shutil.which(words[0])
    if program is None:
        print(f"rlprof: no program {words[0]!r}", file=sys.stderr)
        sys.exit(127)
    command = wrapped(words, worker, os.environ)
    if command != words:
        for number in range(1, _TRIES + 1):
            status = _run_under_nsys(command[: -len(words)], words, f"try {number} of {_TRIES}")
            if status is not None:
                sys.exit(status)
            command = _with_another_session(command, number)
            time.sleep(_PAUSE_S)
        log("training goes on unprofiled")
        os.environ.pop("RLPROF_NSYS_SESSION", None)
        os.environ["RLPROF_NOT_WRAPPED"] = "`nsys launch` ended before the program began, three times; its own words are in the log"
    os.execv(program, [program, *words[1:]])


def _with_another_session(command: list[str], number: int) -> list[str]:
    """What a failed nsys may have left is not met again."""
    old = os.environ["RLPROF_NSYS_SESSION"]
    new = os.environ["RLPROF_NSYS_SESSION"] = f"{old}-{number}"
    return [new.join(word.split(old)) if word.startswith("--session-new=") else word for word in command]


def _run_under_nsys(launch: list[str], words: list[str], which: str) -> int | None:
    """The program's exit code, None when nsys failed before the program began.

    nsys 2023.4 does that once in a while on a busy machine ("Local Endpoint is not available"), and no training should
    end of it. Signals are handed on.
    """
    began = os.path.join(os.environ["TMPDIR"], f"began-{os.getpid()}")
    shell = ["/bin/sh", "-c", ': > "$1"; shift; exec "$@"', "rlprof", began, *words]
    child = subprocess.Popen([*launch, *shell])
    for number in _HANDED_ON:
        signal.signal(number, lambda number, _: child.send_signal(number))
    status = child.wait()
    for number in _HANDED_ON:
        signal.signal(number, signal.SIG_DFL)
    try:
        os.unlink(began)
    except OSError:
        log(f"`nsys launch` ended with {status} before the program began ({which})")
        return None
    return status if status >= 0 else 128 - status


def wrapped(words: list[str], worker: str, env: MutableMapping[str, str]) -> list[str]:
    """The command line to run instead of `words`; `env` gets what the runtime in the program needs."""
    from rlprof_ops.runtime import profiler
    from rlprof_ops.runtime.place import find_place

    try:
        request = profiler.request_from_env(env)
    except Exception as error:
        log(f"nothing is profiled: {error}")
        return words
    place = find_place(worker, None, None, env)
    specs = request.for_worker(place.worker, place.rank) if request else ()
    env["RLPROF_WORKER"], env["RLPROF_RANK"] = place.worker, str(place.rank)
    spec = next((spec for spec in specs if spec.backend == "nsight"), None)
    if spec is None and env.get("RLPROF_ON_DEMAND") != "nsight":
        return words
    if nsight.find(env) is None:
        env["RLPROF_NOT_WRAPPED"] = f"no nsys on {place.host}: it is not on PATH and RLPROF_NSYS is not set"
        if spec is not None and spec.on_error == "fail":
            sys.exit(f"rlprof: {env['RLPROF_NOT_WRAPPED']}; install nsight-systems-cli or set `on_error: continue`")
        return words
    job = names.safe(env.get("RLPROF_JOB") or "local")
    session = f"rlprof-{job}-{names.safe_worker(place.worker)}-r{place.rank}-{place.pid}"
    env["RLPROF_NSYS_SESSION"] = session
    place.tmp.mkdir(mode=0o700, parents=True, exist_ok=True)
    env["TMPDIR"] = str(place.tmp)
    return [*nsight.launch_argv(session, spec), *words]


if __name__ == "__main__":
    main()
