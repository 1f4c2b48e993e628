"""The command line that starts a process under nsys, for a shell or as words; `nsys.sh` tries it again."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
import signal
import socket
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from rlprof_ops import env_names
from rlprof_ops.backends import report_names
from rlprof_ops.backends.contract import Options, Spec
from rlprof_ops.backends.nsight import nsys_cli, nsys_trial
from rlprof_ops.backends.nsight.nsys_options import NAME, capture_range, profile_words, split_options
from rlprof_ops.backends.nsight.rank_slots import RANK, numbered
from rlprof_ops.backends.option_trial import TIMEOUT_S, Trials, timeout_s
from rlprof_ops.backends.wrapping import CannotWrap, Command, Identity

SCRIPT = Path(__file__).with_name("nsys.sh")


class LaunchOptions(Options, Protocol):
    """What a session is launched by."""

    @property
    def on_error(self) -> str: ...


@dataclass(frozen=True)
class NsysCommand:
    """What is put before a program so that it runs under nsys.

    Attributes:
        subcommand: `launch` (a session, whose windows `nsys start` and `stop` take) or `profile`.
        options: nsys's own, in the order it gets them.
        variables: what the program and nsys find in their environment.
        on_error: `continue` starts the program without nsys where nsys does not begin it; `fail` ends.
        session: what the name of a `launch` session begins with.
        begin_within_s: how long nsys has to begin the program.
        numbered_from: of workers that Ray does not number: their name, the first rank, and which ranks are
            profiled, None for all. Each takes its rank when it starts.
    """

    subcommand: str
    nsys: str
    options: tuple[str, ...]
    variables: Mapping[str, str] = field(default_factory=dict)
    on_error: str = "continue"
    session: str = ""
    begin_within_s: int = round(TIMEOUT_S)
    numbered_from: tuple[str, int, Sequence[int] | None] | None = None

    def words(self) -> list[str]:
        """The words before the program's own; no shell may see them unquoted."""
        protocol = [self.nsys, str(self.begin_within_s), self.session, self.on_error, str(len(self.options))]
        return ["bash", str(SCRIPT), self.subcommand, *protocol, *self.options]

    def settings(self) -> str:
        """`env NAME=value …`, quoted, which a shell runs before the words."""
        quoted = [f"{name}={shlex.quote(value)}" for name, value in self.variables.items()]
        return " ".join(["env", *quoted])

    def shell(self, py_executable: str) -> str:
        """Text for the `bash -c "exec …"` of Ray's `exec_worker`. `py_executable` is shell text already (`uv
        run … python`).
        """
        interpreter = py_executable or shlex.quote(sys.executable)
        if self.numbered_from is not None:
            return f"{self.settings()} {numbered(self.words(), interpreter, *self.numbered_from, os.environ)}"
        return " ".join([self.settings(), *map(shlex.quote, self.words()), interpreter])

    def apply(self, context: Any) -> None:
        context.py_executable = self.shell(context.py_executable)

    def command(self, argv: Sequence[str], env: Mapping[str, str]) -> Command:
        env = {**_without_ours(env), **self.variables}
        return Command((*self.words(), *argv), env, told_of_death=signal.SIGPWR)


# What `nsys launch` and `nsys profile` set for their program, and with it for all that it starts. NSYS_NVTX_…
# are knobs of users.
_OF_NSYS = re.compile(
    "(CUDA|NVTX)_INJECTION64_PATH$|CUPTI_PROFILE_MODE$|HOOK_FILE$|NSYS_(?!NVTX_)|QUADD_|USE_AGENT_API$"
    "|TRACE_START_IMMEDIATELY$|__GL_CONSTANT_FRAME_RATE_HINT$"
)


def _without_ours(env: Mapping[str, str]) -> dict[str, str]:
    """`env` of a process that a program of ours under nsys starts, as if there were no nsys around it: what
    is started with it can have a session of its own. Of an nsys that is not ours everything stays.
    """
    if env_names.NSYS_SESSION not in env and env_names.NSYS_RANGE not in env:
        return dict(env)
    libraries = os.path.dirname(env.get("NVTX_INJECTION64_PATH", ""))
    ours = (
        env_names.NSYS_SESSION,
        env_names.NSYS_RANGE,
        env_names.SESSION_PID,
        env_names.SESSION_OPTIONS,
    )
    kept = {name: value for name, value in env.items() if name not in ours and not _OF_NSYS.match(name)}
    loaded = [each for each in re.split("[: ]+", env.get("LD_PRELOAD", "")) if each]
    if libraries and loaded:
        kept["LD_PRELOAD"] = ":".join(each for each in loaded if os.path.dirname(each) != libraries)
    return kept


class NsightWrap:
    """A session, or a capture range where the request names one (the protocol is `wrapping.Wrap`)."""

    def make(
        self, identity: Identity, spec: Spec, env: Mapping[str, str], own: Mapping[str, str]
    ) -> NsysCommand:
        """Raises `CannotWrap` without nsys, and `UsageError` for options that contradict each other."""
        nsys = nsys_cli.find(env)
        if nsys is None:
            raise CannotWrap(_nsys_is_missing(identity, env))
        return nsys_command(identity, spec, env, nsys)

    async def reason_against(
        self, identity: Identity, spec: Spec, context: Any, trials: Trials, env: Mapping[str, str]
    ) -> str | None:
        return await nsys_trial.reason_against(spec, trials, env)


WRAP = NsightWrap()


def _nsys_is_missing(identity: Identity, env: Mapping[str, str]) -> str:
    """One message for a node without nsys: who needs it, and what to do."""
    node = env.get(env_names.NODE) or socket.gethostname()
    return (
        f"no nsys on node {node} for worker {identity.worker!r} rank {identity.rank}:"
        f" {nsys_cli.why_missing(env)}. Install"
        " nsight-systems-cli there (or in the container), set RLPROF_NSYS to it, or set `on_error: continue`"
        " in the request to train unprofiled"
    )


def nsys_command(identity: Identity, spec: Spec, env: Mapping[str, str], nsys: str) -> NsysCommand:
    """The command of one worker: with a capture range where the request names one, else a session."""
    make = range_command if capture_range(spec) else session_command
    return make(identity, spec, env, nsys)


def session_command(
    identity: Identity, spec: LaunchOptions, env: Mapping[str, str], nsys: str
) -> NsysCommand:
    """`nsys launch`: the process idles in a session of its own until a window is opened.

    Raises `UsageError` for options that contradict each other.
    """
    rank = identity.rank if identity.base is None else RANK
    split = split_options(spec, nsys=nsys)
    _tell(split.notes, env)
    return NsysCommand(
        "launch",
        nsys,
        split.launch,
        job_tmpdir(env),
        spec.on_error,
        session_prefix(identity.worker or report_names.NAMELESS, rank, env),
        begin_within_s(env),
    )


def _tell(notes: Sequence[str], env: Mapping[str, str]) -> None:
    """Tell the manifest, once a process, what this node's GPUs have changed."""
    new = [note for note in notes if note not in _told]
    if not new or not env.get(env_names.NODE_DIR):
        return
    _told.update(new)
    rows = [json.dumps({"event": "nsys_options", "reason": note}) + "\n" for note in new]
    with contextlib.suppress(OSError):
        path = Path(env[env_names.NODE_DIR], "events", f"notes_{os.getpid()}.jsonl")
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a") as file:
            file.writelines(rows)


_told: set[str] = set()


def session_prefix(worker: str, rank: int | str | None, env: Mapping[str, str]) -> str:
    """LaunchOptions names begin with a letter and are unique on a machine that several jobs share."""
    return (
        f"rlprof-{report_names.safe(env.get(env_names.JOB) or 'local')}"
        f"-{report_names.safe_worker(worker)}-r{rank or 0}-"
    )


def range_command(identity: Identity, spec: Spec, env: Mapping[str, str], nsys: str) -> NsysCommand:
    """`nsys profile --capture-range=…`: the report comes when the process ends, one for each window.

    The name has the steps when there is one window; nsys numbers the reports of several. The folder of the
    report exists afterwards. Raises `UsageError` for options that contradict each other.
    """
    opened_by = capture_range(spec) or "none"
    windows = spec.windows()
    counted = None if spec.each == "phase" or any(window.stop is None for window in windows) else len(windows)
    folder = Path(env.get(env_names.RUN_DIR) or "rlprof-profiles").absolute() / report_names.report_folder(
        NAME, identity.worker or "", identity.rank
    )
    output = report_output(None, identity, windows[0] if counted == 1 else None, env, folder)
    for each in reversed(Path(output).parents):  # os.makedirs gives its mode to the last one alone
        each.mkdir(mode=0o750, exist_ok=True)
    variables = {env_names.NSYS_RANGE: opened_by, **job_tmpdir(env)}
    if opened_by == "nvtx":
        variables["NSYS_NVTX_PROFILER_REGISTER_ONLY"] = "0"  # else only registered strings open a range
    options = (*profile_words(spec, counted, nsys), "-o", output)
    _tell(split_options(spec, nsys=nsys).notes, env)
    return NsysCommand("profile", nsys, options, variables, spec.on_error, begin_within_s=begin_within_s(env))


def report_output(
    asked: str | None, identity: Identity, window: object | None, env: Mapping[str, str], session_folder: Path
) -> str:
    """Where nsys writes, without suffix; nsys itself puts the process id for %p.

    An absolute path is somebody's own decision and stays. Everything else is named by worker, rank and host,
    because Ray's and NeMo RL's names are not unique over nodes.
    """
    if asked and os.path.isabs(asked):
        return asked
    host = env.get(env_names.NODE) or socket.gethostname()
    worker = identity.worker or _own_name(asked)
    stem = report_names.process_report_stem(worker, identity.rank, window, host, "%p")
    rank = f"rank{identity.rank or 0}"
    if identity.base is not None:
        stem, rank = stem.replace("_rank0_", f"_rank{RANK}_", 1), f"rank{RANK}"
    if env.get(env_names.NODE_DIR):
        folder = Path(
            env[env_names.NODE_DIR],
            "inplace",
            NAME,
            report_names.safe_worker(worker or report_names.NAMELESS),
            rank,
        )
    else:
        folder = session_folder
    return str(folder / stem)


def _own_name(asked: str | None) -> str | None:
    """A name that a user chose for the report, as the worker's; None for Ray's and nothing."""
    stem = (asked or "").rpartition("/")[2].replace("_%p", "").replace("%p", "")
    return None if stem in ("", report_names.NAMELESS) or "%" in stem else report_names.safe_worker(stem)


def begin_within_s(env: Mapping[str, str]) -> int:
    """What a trial of nsys's options has, and no less than usual."""
    return round(max(TIMEOUT_S, timeout_s(env)))


def job_tmpdir(env: Mapping[str, str]) -> dict[str, str]:
    """TMPDIR in the node folder, which then exists: the supervisor recovers what nsys leaves there."""
    node_dir = env.get(env_names.NODE_DIR)
    if not node_dir:
        return {}
    tmp = os.path.join(node_dir, "tmp")
    os.makedirs(tmp, mode=0o700, exist_ok=True)
    return {"TMPDIR": tmp}
