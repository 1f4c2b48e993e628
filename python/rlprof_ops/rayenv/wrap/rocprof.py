"""Starting a Ray worker under rocprof-sys: the command that keeps its interpreter, its variables, and the
trial of both.
"""

from __future__ import annotations

import os
import shlex
import socket
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlprof_ops import env_names
from rlprof_ops.backends import names, rocprof_sys
from rlprof_ops.rayenv.worker_selection import Identity
from rlprof_ops.rayenv.wrap.option_trial import Trials, trial_env

if TYPE_CHECKING:
    from rlprof_ops.request import CaptureSpec

# Without it every Python function is traced from the first line on, which slows training several times.
DEFAULT_FLAGS = ("b",)
# Leaves a file when it really ran: the front end ends with 0 also when it could not start the script.
_TRIAL_SCRIPT = 'import sys\nopen(sys.argv[0] + ".ran", "w").close()\n'


@dataclass(frozen=True)
class RocprofWrap:
    """What to change in one worker's runtime-env context."""

    package_folder: str
    words: tuple[str, ...]
    variables: Mapping[str, str]

    def shell(self, py_executable: str) -> str:
        """Text for `bash -c "exec … default_worker.py …"`: the worker's own interpreter runs rocprof-sys,
        which runs the script.
        """
        path = f'PYTHONPATH={shlex.quote(self.package_folder)}"${{PYTHONPATH:+:$PYTHONPATH}}"'
        return " ".join(["env", path, py_executable, "-m", "rocprofsys", *map(shlex.quote, self.words), "--"])

    def apply(self, context: Any) -> None:
        context.py_executable = self.shell(context.py_executable)
        context.env_vars.update(self.variables)


@dataclass(frozen=True)
class Asked:
    """What somebody asked of rocprof-sys. `variables` are `ROCPROFSYS_*` that were set on purpose; they
    win over ours.
    """

    options: Mapping[str, str | None]
    flags: tuple[str, ...]
    variables: Mapping[str, str]


async def prepare(
    asked: Asked,
    identity: Identity,
    spec: CaptureSpec | None,
    windowed: bool,
    context: Any,
    trials: Trials,
    session_folder: Path,
    env: Mapping[str, str] | None = None,
) -> RocprofWrap:
    """A wrap that a trial has shown to work; raises `rocprof_sys.FrontEndError` with the reason when there
    is none.
    """
    windows: Any = spec.windows() if spec is not None else ()
    wrap = make_wrap(
        asked,
        identity,
        windows[0] if windowed and len(windows) == 1 else None,
        windowed,
        os.environ if env is None else env,
        session_folder,
    )
    reason = await reason_against(wrap, context, trials, trial_env())
    if reason is not None:
        raise rocprof_sys.FrontEndError(
            f"`python -m rocprofsys {' '.join(wrap.words)} --` does not work: {reason}"
        )
    return wrap


def make_wrap(
    asked: Asked,
    identity: Identity,
    window: Any | None,
    windowed: bool,
    env: Mapping[str, str],
    session_folder: Path,
) -> RocprofWrap:
    """The wrap of one worker; the folder of its trace exists afterwards.

    Args:
        window: the steps to name the trace by, None when several or no windows are in it.
        windowed: recording is off until the worker's step gate opens a window.
        session_folder: where traces go outside a job.

    Raises `rocprof_sys.FrontEndError` when this node cannot run it.
    """
    front_end = rocprof_sys.find(env)
    host = env.get(env_names.NODE) or socket.gethostname()
    stem = names.process_report_stem(identity.worker, identity.rank, window, host, "%pid%")
    folder = session_folder
    if env.get(env_names.NODE_DIR):
        worker = names.safe_worker(identity.worker or names.NAMELESS)
        folder = Path(env[env_names.NODE_DIR], "inplace", "rocprof_sys", worker, f"rank{identity.rank or 0}")
    own = {name: str(value) for name, value in asked.variables.items()}
    variables = rocprof_sys.variables(str(folder), stem, own, windowed)
    os.makedirs(variables["ROCPROFSYS_OUTPUT_PATH"], mode=0o700, exist_ok=True)
    return RocprofWrap(
        front_end.package_folder, tuple(rocprof_sys.render(asked.options, asked.flags)), variables
    )


async def reason_against(
    wrap: RocprofWrap, context: Any, trials: Trials, env: Mapping[str, str]
) -> str | None:
    """Why a worker of this context would not start under rocprof-sys; None when a trial script ran under
    it.
    """
    quiet = replace(wrap, variables={**wrap.variables, "ROCPROFSYS_OUTPUT_PATH": "{folder}"})
    prefix = list(getattr(context, "command_prefix", None) or [])
    command = " ".join([*prefix, "exec", wrap.shell(context.py_executable), '"$0"'])
    own = {name: os.path.expandvars(str(value)) for name, value in context.env_vars.items()}
    full = {**env, **own, **quiet.variables}
    settings = {
        name: value
        for name, value in wrap.variables.items()
        if name not in ("ROCPROFSYS_OUTPUT_PATH", "ROCPROFSYS_OUTPUT_PREFIX")
    }
    key = (command, *(f"{name}={value}" for name, value in sorted(settings.items())))
    return await trials.reason_against(
        key,
        ["bash", "-c", command, "{folder}/worker.py"],
        full,
        files={"worker.py": _TRIAL_SCRIPT},
        proof="worker.py.ran",
    )
