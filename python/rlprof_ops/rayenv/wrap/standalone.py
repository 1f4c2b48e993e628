"""The same wrapping for a process that Ray does not start: what `rlprof wrap … -- CMD` and `python -m
rlprof_ops.rayenv.wrap … CMD` run instead of CMD.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from rlprof_ops import backends, env_names, trainers
from rlprof_ops.backends.contract import wrap_of
from rlprof_ops.backends.wrapping import CannotWrap, Command, Identity, worker_variables
from rlprof_ops.errors import RlprofError, UsageError
from rlprof_ops.job.end_cause import exit_status
from rlprof_ops.job.knobs import python_path
from rlprof_ops.rayenv.wrap import wrapped_run
from rlprof_ops.rayenv.wrap.wrap_context import specs_for
from rlprof_ops.runtime import step_clock
from rlprof_ops.runtime.process import beginning
from rlprof_ops.runtime.process.launchers import launcher_of

if TYPE_CHECKING:
    from rlprof_ops.request import CaptureSpec, ProfileRequest

TRAINER = "trainer"
_PR_SET_PDEATHSIG = 1  # linux/prctl.h
_SI_KERNEL = 0x80  # asm-generic/siginfo.h
_LOOK_S = 1.0
# Every signal that somebody may send: not what a fault, a pipe or a file makes of its own process, and what
# stops and continues it.
_HANDED_ON = signal.valid_signals() - {
    signal.SIGKILL,
    signal.SIGSTOP,
    signal.SIGTSTP,
    signal.SIGTTIN,
    signal.SIGTTOU,
    signal.SIGCONT,
    signal.SIGCHLD,
    signal.SIGSEGV,
    signal.SIGBUS,
    signal.SIGFPE,
    signal.SIGILL,
    signal.SIGTRAP,
    signal.SIGSYS,
    signal.SIGPIPE,
    signal.SIGXFSZ,
}
_HEARD = _HANDED_ON | {signal.SIGCHLD}
# A terminal sends these to every process in it. An alarm, or a limit of processor time, is sent to one.
_OF_A_TERMINAL = frozenset({signal.SIGINT, signal.SIGQUIT, signal.SIGHUP, signal.SIGWINCH})


def wrapped_command(
    worker: str | None,
    rank: int | None,
    argv: Sequence[str],
    request: ProfileRequest | None,
    env: Mapping[str, str],
) -> Command:
    """CMD as the request wants it: under the profiler of its first capture that needs that, or as it is.

    Args:
        worker: None for a trainer whose adapter names it; it counts as `trainer` here.
        argv: the program and its arguments; never seen by a shell.

    A launcher of ranks is run as it is: each of its ranks comes here by itself.

    Raises `UsageError` for options that the tool refuses, `RlprofError` when a selected process cannot be
    profiled here and its capture has `on_error: fail`.
    """
    full = dict(env)
    if env.get(env_names.ADAPTERS, "1") != "0":
        full["PYTHONPATH"] = python_path(env.get("PYTHONPATH"))
        full.update(trainers.environment())
    if launcher_of(argv):
        return _launcher(worker, argv, request, full)
    identity = Identity(worker or TRAINER, rank)
    specs = specs_for(request, worker or TRAINER, rank, env)
    if worker or specs:
        full |= worker_variables(worker or TRAINER, rank)
    for spec in specs:
        full.update(spec.env)
    if specs and request:
        full[env_names.REQUEST_JSON] = request.to_json()
    for spec in specs:
        _check(spec)
        wrap = wrap_of(backends.get(spec.backend))
        if wrap is None:
            continue
        try:
            return wrap.make(identity, spec, full, full).command(argv, full)
        except CannotWrap as error:
            if spec.on_error == "fail":
                raise RlprofError(f"{identity} cannot be profiled: {error}") from None
            full[env_names.NOT_WRAPPED] = str(error)
    return Command(tuple(argv), full)


def _launcher(
    worker: str | None, argv: Sequence[str], request: ProfileRequest | None, env: dict[str, str]
) -> Command:
    """The launcher with what its ranks need to wrap themselves (`launchers.wrap_this_rank`)."""
    for spec in specs_for(request, worker or TRAINER, None, env):
        _check(spec)
        env[env_names.WRAP_RANKS] = worker or TRAINER
        env["PYTHONPATH"] = python_path(env.get("PYTHONPATH"))
        if request:
            env[env_names.REQUEST_JSON] = request.to_json()
    return Command(tuple(argv), env)


def _check(spec: CaptureSpec) -> None:
    errors = backends.validate(spec).errors
    if errors:
        raise UsageError("; ".join(errors))


class CannotRun(RlprofError):
    """A program that cannot be started; the exit code is a shell's."""

    def __init__(self, program: str, error: OSError) -> None:
        super().__init__(f"cannot run {program!r}: {error.strerror or error}")
        self.exit_code = 127 if isinstance(error, FileNotFoundError) else 126


def start(made: Command, argv: Sequence[str], request: ProfileRequest | None) -> NoReturn:
    """Run what `wrapped_command` has made of `argv`; outside a job with a manifest of it in the end.

    Raises `CannotRun` for a program that cannot be started.
    """
    leads = bool(made.env.get(env_names.JOB)) and not os.environ.get(env_names.JOB)
    if leads:  # what this process notes goes there too
        os.environ.update({name: made.env[name] for name in (env_names.JOB, env_names.RUN_DIR)})
    record = None
    if leads and request:
        folder, job = Path(made.env[env_names.RUN_DIR]), made.env[env_names.JOB]
        record = wrapped_run.WrappedRun(folder, job, _say, request.output_dir or "")
        record = record if record.begin(argv, request) else None
    _note(made.env)
    if record is None:
        run(made)
    try:
        code = _supervise(made)
    except OSError as error:
        failed = CannotRun(made.argv[0], error)
        record.end(failed.exit_code)
        raise failed from None
    record.end(exit_status(code))
    _end_as(code)


def _say(line: str) -> None:
    with contextlib.suppress(OSError):
        print(f"rlprof: {line}", file=sys.stderr, flush=True)


def _note(env: Mapping[str, str]) -> None:
    """Tell the manifest of a process that was selected: one that marks no step tells nothing of itself."""
    if env.get(env_names.NODE_DIR) or env_names.WRAP_RANKS in env or not env.get(env_names.WORKER):
        return
    step_clock.note(beginning.SELECTED, worker=env[env_names.WORKER], rank=int(env.get(env_names.RANK) or 0))
    if reason := env.get(env_names.NOT_WRAPPED):
        with contextlib.suppress(OSError, RlprofError):
            beginning.fail_windows(env, reason)


def run(made: Command) -> NoReturn:
    """Become the command; stay its parent where the tool hides the exit code, and where whoever ends us by
    force would miss the program: torchrun and Lightning end ranks by SIGKILL.

    Raises `CannotRun` for a program that cannot be started.
    """
    try:
        if made.exit_code_file is None and made.told_of_death is None:
            sys.stdout.flush()
            os.execvpe(made.argv[0], made.argv, made.env)
        _end_as(_supervise(made))
    except OSError as error:
        raise CannotRun(made.argv[0], error) from None


def _supervise(made: Command) -> int:
    """Run it as a child that gets our signals and dies with us; its return code."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _HEARD)
    ours, libc = os.getpid(), ctypes.CDLL(None)

    def begin() -> None:
        libc.prctl(_PR_SET_PDEATHSIG, made.told_of_death or signal.SIGKILL)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        if os.getppid() != ours:
            os.kill(os.getpid(), signal.SIGKILL)

    sys.stdout.flush()
    try:
        child = subprocess.Popen(made.argv, env=dict(made.env), preexec_fn=begin)
        while (code := child.poll()) is None:
            told = signal.sigtimedwait(_HEARD, _LOOK_S)
            if told is not None and told.si_signo != signal.SIGCHLD and not _told_by_all(told):
                child.send_signal(told.si_signo)
    finally:
        hidden = None if made.exit_code_file is None else _hidden_code(made.exit_code_file)
    return code if hidden is None else hidden


def _told_by_all(told: signal.struct_siginfo) -> bool:
    """Whether the program has had this signal too: a terminal's, or Slurm's, which go to every process."""
    if told.si_code == _SI_KERNEL:
        return told.si_signo in _OF_A_TERMINAL
    try:
        return Path(f"/proc/{told.si_pid}/comm").read_text(encoding="utf-8").strip() == "slurmstepd"
    except (OSError, ValueError):
        return False


def _hidden_code(path: str) -> int | None:
    """The exit code that the program has left; None where it did not come that far."""
    try:
        with open(path, encoding="ascii") as file:
            return int(file.read())
    except (OSError, ValueError):
        return None
    finally:
        shutil.rmtree(os.path.dirname(path), ignore_errors=True)


def _end_as(code: int) -> NoReturn:
    """End as the program did: a launcher is told of its signal."""
    sys.stdout.flush()
    if code < 0:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # it has left its own
        with contextlib.suppress(OSError, ValueError):
            signal.signal(-code, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {-code})
        os.kill(os.getpid(), -code)
    sys.exit(exit_status(code))
