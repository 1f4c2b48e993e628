"""The command line that runs a program under nsys, for a shell or as words; `nsys.sh` tries it again."""

from __future__ import annotations

import os
import shlex
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from rlprof_ops import env_names
from rlprof_ops.backends import names, nsight
from rlprof_ops.rayenv.worker_selection import Identity
from rlprof_ops.rayenv.wrap.option_trial import TIMEOUT_S, timeout_s
from rlprof_ops.rayenv.wrap.rank_slots import RANK

if TYPE_CHECKING:
    from rlprof_ops.request import CaptureSpec

SCRIPT = Path(__file__).with_name("nsys.sh")


@dataclass(frozen=True)
class NsysCommand:
    """What is put before a program so that it runs under nsys.

    Attributes:
        subcommand: `launch` (a session, whose windows `nsys start` and `stop` take) or `profile`.
        options: nsys's own, in the order it gets them.
        variables: what the program and nsys find in their environment.
        on_error: `continue` starts the program without nsys where nsys does not begin it; `fail` ends.
        session: what the name of a `launch` session begins with.
        patience_s: how long nsys has to begin the program.
    """

    subcommand: str
    nsys: str
    options: tuple[str, ...]
    variables: Mapping[str, str] = field(default_factory=dict)
    on_error: str = "continue"
    session: str = ""
    patience_s: int = round(TIMEOUT_S)

    def words(self) -> list[str]:
        """The words before the program's own; no shell may see them unquoted."""
        protocol = [self.nsys, str(self.patience_s), self.session, self.on_error, str(len(self.options))]
        return ["bash", str(SCRIPT), self.subcommand, *protocol, *self.options]

    def settings(self) -> str:
        """`env NAME=value …`, quoted, which a shell runs before the words."""
        quoted = [f"{name}={shlex.quote(value)}" for name, value in self.variables.items()]
        return " ".join(["env", *quoted])

    def shell(self, py_executable: str) -> str:
        """Text for the `bash -c "exec …"` of Ray's `exec_worker`. `py_executable` is shell text already (`uv
        run … python`).
        """
        return " ".join([self.settings(), *map(shlex.quote, self.words()), py_executable])


def session_command(identity: Identity, spec: CaptureSpec, env: Mapping[str, str], nsys: str) -> NsysCommand:
    """`nsys launch`: the process idles in a session of its own until a window is opened.

    Raises `UsageError` for options that contradict each other.
    """
    return NsysCommand(
        "launch",
        nsys,
        nsight.split_options(spec).launch,
        job_tmpdir(env),
        spec.on_error,
        session_prefix(identity.worker or names.NAMELESS, identity.rank, env),
        patience_s(env),
    )


def session_prefix(worker: str, rank: int | None, env: Mapping[str, str]) -> str:
    """Session names begin with a letter and are unique on a machine that several jobs share."""
    return f"rlprof-{names.safe(env.get(env_names.JOB) or 'local')}-{names.safe_worker(worker)}-r{rank or 0}-"


def range_command(identity: Identity, spec: CaptureSpec, env: Mapping[str, str], nsys: str) -> NsysCommand:
    """`nsys profile --capture-range=…`: the report comes when the process ends, one for each window.

    The name has the steps when there is one window; nsys numbers the reports of several. The folder of the
    report exists afterwards. Raises `UsageError` for options that contradict each other.
    """
    opened_by = nsight.capture_range(spec) or "none"
    windows = spec.windows()
    counted = None if spec.each == "phase" or any(window.stop is None for window in windows) else len(windows)
    folder = Path(env.get(env_names.RUN_DIR) or "rlprof-profiles").absolute() / names.report_folder(
        "nsight", identity.worker or "", identity.rank
    )
    output = report_output(None, identity, windows[0] if counted == 1 else None, env, folder)
    os.makedirs(os.path.dirname(output), mode=0o700, exist_ok=True)
    variables = {env_names.NSYS_RANGE: opened_by, **job_tmpdir(env)}
    if opened_by == "nvtx":
        variables["NSYS_NVTX_PROFILER_REGISTER_ONLY"] = "0"  # else only registered strings open a range
    options = (*nsight.profile_words(spec, counted), "-o", output)
    return NsysCommand("profile", nsys, options, variables, spec.on_error, patience_s=patience_s(env))


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
    stem = names.process_report_stem(worker, identity.rank, window, host, "%p")
    rank = f"rank{identity.rank or 0}"
    if identity.base is not None:
        stem, rank = stem.replace("_rank0_", f"_rank{RANK}_", 1), f"rank{RANK}"
    if env.get(env_names.NODE_DIR):
        folder = Path(
            env[env_names.NODE_DIR], "inplace", "nsight", names.safe_worker(worker or names.NAMELESS), rank
        )
    else:
        folder = session_folder
    return str(folder / stem)


def _own_name(asked: str | None) -> str | None:
    """A name that a user chose for the report, as the worker's; None for Ray's and nothing."""
    stem = (asked or "").rpartition("/")[2].replace("_%p", "").replace("%p", "")
    return None if stem in ("", names.NAMELESS) or "%" in stem else names.safe_worker(stem)


def patience_s(env: Mapping[str, str]) -> int:
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
