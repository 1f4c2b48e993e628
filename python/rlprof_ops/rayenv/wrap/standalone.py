"""The same wrapping for a process that Ray does not start: what `rlprof wrap … -- CMD` runs instead of
CMD.
"""

from __future__ import annotations

import asyncio
import os
import re
import shlex
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from rlprof_ops.backends import nsight, rocprof_sys, validate
from rlprof_ops.errors import RlprofError, UsageError
from rlprof_ops.job.knobs import python_path
from rlprof_ops.rayenv.worker_selection import Identity
from rlprof_ops.rayenv.wrap import rocprof
from rlprof_ops.rayenv.wrap.command import profile_settings_and_words, session_prefix
from rlprof_ops.rayenv.wrap.option_trial import Trials

# In the order of trust: torchrun's, Slurm's, MPI's. The first that is set counts.
RANK_VARIABLES = ("RLPROF_RANK", "RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "PMI_RANK")
TRAINER = "trainer"
_RUNNER = Path(__file__).with_name("rocprof_script.py")
_PYTHON = re.compile(r"python(\d(\.\d+)?)?$")
_PYTHON_TAKES_VALUE = ("-W", "-X", "--check-hash-based-pycs")


@dataclass(frozen=True)
class Command:
    """What to run. `exit_code_file`: the tool hides the program's exit code, which is found there instead.

    `nsys`: how many of the words are nsys's own, so that the program can be started without them.
    """

    argv: tuple[str, ...]
    env: Mapping[str, str]
    exit_code_file: str | None = None
    nsys: int = 0
    on_error: str = "continue"


def rank_from(env: Mapping[str, str]) -> int | None:
    """This process's rank as its launcher says it."""
    for name in RANK_VARIABLES:
        if re.fullmatch(r"\d{1,9}", env.get(name, "")):
            return int(env[name])
    return None


def wrapped_command(
    worker: str | None, rank: int | None, argv: Sequence[str], request: Any, env: Mapping[str, str]
) -> Command:
    """CMD as the request wants it: under nsys, under rocprof-sys, or as it is.

    Args:
        worker: None for a trainer whose adapter names it; it counts as `trainer` here.
        argv: the program and its arguments; never seen by a shell.
        request: a `ProfileRequest`.

    Raises `RlprofError` when a selected process cannot be profiled here and its capture has `on_error: fail`.
    """
    full = dict(env)
    if env.get("RLPROF_ADAPTERS", "1") != "0":
        full["PYTHONPATH"] = python_path(env.get("PYTHONPATH"))
    worker = worker or TRAINER
    specs = request.for_worker(worker, rank) if request else ()
    if not specs:
        return Command(tuple(argv), full)
    for spec in specs:
        full.update(spec.env)
    full.update(
        {
            "RLPROF_WORKER": worker,
            "RLPROF_RANK": "" if rank is None else str(rank),
            "RLPROF_REQUEST_JSON": request.to_json(),
        }
    )
    for spec in specs:
        errors = validate(spec).errors
        if errors:
            raise UsageError("; ".join(errors))
        try:
            if spec.backend == "nsight":
                return _under_nsys(worker, rank, argv, spec, full)
            if spec.backend == "rocprof_sys":
                return _under_rocprof(Identity(worker, rank), argv, spec, full)
        except (_NotHere, rocprof_sys.FrontEndError) as error:
            if spec.on_error == "fail":
                raise RlprofError(f"{Identity(worker, rank)} cannot be profiled: {error}") from None
            full["RLPROF_NOT_WRAPPED"] = str(error)
    return Command(tuple(argv), full)


class _NotHere(Exception):
    """The tool is not on this node."""


def _under_nsys(
    worker: str, rank: int | None, argv: Sequence[str], spec: Any, env: dict[str, str]
) -> Command:
    nsys = nsight.find(env)
    if nsys is None:
        raise _NotHere("no nsys on PATH; install nsight-systems-cli or set RLPROF_NSYS")
    if nsight.capture_range(spec):
        settings, words = profile_settings_and_words(Identity(worker, rank), spec, env)
        profile = (nsys, "profile", *words)
        return Command((*profile, *argv), {**env, **settings}, nsys=len(profile), on_error=spec.on_error)
    # Our pid is nobody else's on this node.
    session = f"{session_prefix(worker, rank, env)}{os.getpid()}"
    own = {"RLPROF_NSYS_SESSION": session}
    if env.get("RLPROF_NODE_DIR"):
        own["TMPDIR"] = os.path.join(env["RLPROF_NODE_DIR"], "tmp")
        os.makedirs(own["TMPDIR"], mode=0o700, exist_ok=True)
    launch = [nsys, "launch", f"--session-new={session}", *nsight.split_options(spec).launch]
    return Command((*launch, *argv), {**env, **own}, nsys=len(launch), on_error=spec.on_error)


def _under_rocprof(identity: Identity, argv: Sequence[str], spec: Any, env: dict[str, str]) -> Command:
    python, rest = split_python(argv)
    folder = Path(env.get("RLPROF_NODE_DIR") or env.get("RLPROF_RUN_DIR") or "rlprof-profiles").absolute()
    variables = {name: value for name, value in env.items() if name.startswith("ROCPROFSYS_")}
    asked = rocprof.Asked(
        spec.options, spec.flags if spec.flags or spec.options else rocprof.DEFAULT_FLAGS, variables
    )
    target = folder / "profiles" / "rocprof_sys" / (identity.worker or "") / f"rank{identity.rank or 0}"
    context = SimpleNamespace(py_executable=shlex.join(python), env_vars=env, command_prefix=[])
    wrap = asyncio.run(rocprof.prepare(asked, identity, spec, True, context, Trials(), target, env))
    codes = os.path.join(tempfile.mkdtemp(prefix="rlprof-wrap-"), "exit_code")
    path = os.pathsep.join(filter(None, [wrap.package_folder, env.get("PYTHONPATH")]))
    command = (*python, "-m", "rocprofsys", *wrap.words, "--", str(_RUNNER), codes, *rest)
    return Command(command, {**env, **wrap.variables, "PYTHONPATH": path}, codes)


def split_python(argv: Sequence[str]) -> tuple[list[str], list[str]]:
    """`python -u train.py --x` -> (["python", "-u"], ["train.py", "--x"]).

    Raises `UsageError` for anything but Python: rocprof-sys starts Python scripts alone.
    """
    program = os.path.basename(shutil.which(argv[0]) or argv[0])
    if not _PYTHON.fullmatch(program) and not _PYTHON.fullmatch(os.path.basename(argv[0])):
        raise UsageError(
            f"rocprof-sys starts Python scripts, and {argv[0]!r} is no Python: wrap what it starts, "
            "e.g. `torchrun --no-python … rlprof wrap --worker W -- python train.py`"
        )
    at = 1
    while at < len(argv) and argv[at].startswith("-") and argv[at] not in ("-m", "-c", "-"):
        at += 2 if argv[at] in _PYTHON_TAKES_VALUE else 1
    if at >= len(argv) or argv[at] in ("-c", "-"):
        raise UsageError(f"rocprof-sys starts Python scripts: name one after {' '.join(argv[:at])!r}")
    return list(argv[:at]), list(argv[at:])
