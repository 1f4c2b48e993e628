"""`python -m rlprof_ops.runtime.process.launch [--worker NAME] PROGRAM …`: run a training process under nsys
where the request wants it.

What the Ray plugin does for actors, for processes that another launcher starts (torchrun, srun, mpirun). A
process that no capture selects is started as it is. Example:

    torchrun --no-python --nproc-per-node 8 python -m rlprof_ops.runtime.process.launch --worker trainer
    python train.py
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import MutableMapping
from typing import NoReturn

from rlprof_ops.backends import names, nsight, validate
from rlprof_ops.runtime.process import nsys_launcher
from rlprof_ops.runtime.process.event_log import log

_USAGE = "usage: python -m rlprof_ops.runtime.process.launch [--worker NAME] PROGRAM [ARGUMENT …]"


def main(argv: list[str] | None = None) -> NoReturn:
    """Become the program, or run it under nsys and end with its exit code; exit code 1 for a wrong command
    line, 127 for no such program.
    """
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
    command, on_error = _wrapped(words, worker, os.environ)
    if command != words:
        nsys_launcher.run(command[: -len(words)], words, os.environ, on_error)
    os.execv(program, [program, *words[1:]])


def wrapped(words: list[str], worker: str, env: MutableMapping[str, str]) -> list[str]:
    """The command line to run instead of `words`; `env` gets what the runtime in the program needs."""
    return _wrapped(words, worker, env)[0]


def _wrapped(words: list[str], worker: str, env: MutableMapping[str, str]) -> tuple[list[str], str]:
    """The same, and the capture's `on_error`."""
    from rlprof_ops.runtime import profiler
    from rlprof_ops.runtime.process.worker_identity import find_identity

    try:
        request = profiler.request_from_env(env)
    except Exception as error:
        log(f"nothing is profiled: {error}")
        return words, "continue"
    place = find_identity(worker, None, None, env)
    specs = request.for_worker(place.worker, place.rank) if request else ()
    env["RLPROF_WORKER"], env["RLPROF_RANK"] = place.worker, str(place.rank)
    spec = next((spec for spec in specs if spec.backend == "nsight"), None)
    if spec is None and env.get("RLPROF_ON_DEMAND") != "nsight":
        return words, "continue"
    reason = "; ".join(validate(spec).errors) if spec is not None else ""
    if not reason and nsight.find(env) is None:
        reason = (
            f"no nsys on {place.host}: {nsight.why_missing(env)}; install nsight-systems-cli or set"
            " `on_error: continue`"
        )
    if reason:
        env["RLPROF_NOT_WRAPPED"] = reason
        if spec is not None and spec.on_error == "fail":
            sys.exit(f"rlprof: {reason}")
        return words, "continue"
    job = names.safe(env.get("RLPROF_JOB") or "local")
    session = f"rlprof-{job}-{names.safe_worker(place.worker)}-r{place.rank}-{place.pid}"
    env["RLPROF_NSYS_SESSION"] = session
    place.tmp.mkdir(mode=0o700, parents=True, exist_ok=True)
    env["TMPDIR"] = str(place.tmp)
    return [*nsight.launch_argv(session, spec), *words], spec.on_error if spec else "continue"


if __name__ == "__main__":
    main()
