"""Starting a process under rocprof-sys: the command that keeps its interpreter, its variables, the
trial of both, and what a doctor finds.
"""

from __future__ import annotations

import asyncio
import os
import re
import shlex
import shutil
import socket
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from rlprof_ops import env_names
from rlprof_ops.backends import report_names
from rlprof_ops.backends.contract import Spec
from rlprof_ops.backends.option_trial import Trials, trial_env
from rlprof_ops.backends.rocprof_sys import front_end
from rlprof_ops.backends.wrapping import CannotWrap, Command, ConfigError, Given, Identity, clean_options
from rlprof_ops.check_result import OK, WARN, CheckResult
from rlprof_ops.errors import UsageError

_RUNNER = Path(__file__).with_name("run_script.py")
_PYTHON = re.compile(r"python(\d(\.\d+)?)?$")
_PYTHON_TAKES_VALUE = ("-W", "-X", "--check-hash-based-pycs")
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

    def command(self, argv: Sequence[str], env: Mapping[str, str]) -> Command:
        """Tried first: what rocprof-sys refuses would end the program. Raises `CannotWrap`."""
        python, rest = split_python(argv)
        context = SimpleNamespace(py_executable=shlex.join(python), env_vars=env, command_prefix=[])
        reason = asyncio.run(reason_against(self, context, Trials(), trial_env()))
        if reason is not None:
            raise CannotWrap(does_not_work(self, reason))
        codes = os.path.join(tempfile.mkdtemp(prefix="rlprof-wrap-"), "exit_code")
        path = os.pathsep.join(filter(None, [self.package_folder, env.get("PYTHONPATH")]))
        words = (*python, "-m", "rocprofsys", *self.words, "--", str(_RUNNER), codes, *rest)
        return Command(words, {**env, **self.variables, "PYTHONPATH": path}, codes)


class RocprofSysWrap:
    """For a request of ours: recording is off until the worker's step gate opens a window (the protocol is
    `wrapping.Wrap`).
    """

    def make(
        self, identity: Identity, spec: Spec, env: Mapping[str, str], own: Mapping[str, str]
    ) -> RocprofWrap:
        variables = {
            name: value for name, value in {**own, **spec.env}.items() if name.startswith("ROCPROFSYS_")
        }
        flags = spec.flags if spec.flags or spec.options else DEFAULT_FLAGS
        asked = Given({**dict.fromkeys(flags), **spec.options}, variables)
        home = Path(env.get(env_names.NODE_DIR) or env.get(env_names.RUN_DIR) or "rlprof-profiles").absolute()
        folder = home / report_names.report_folder(front_end.NAME, identity.worker or "", identity.rank)
        windows = spec.windows()
        return make_wrap(asked, identity, windows[0] if len(windows) == 1 else None, True, env, folder)

    async def reason_against(
        self, identity: Identity, spec: Spec, context: Any, trials: Trials, env: Mapping[str, str]
    ) -> str | None:
        wrap = self.make(identity, spec, env, context.env_vars)
        reason = await reason_against(wrap, context, trials, trial_env())
        return None if reason is None else does_not_work(wrap, reason)


WRAP = RocprofSysWrap()


class RocprofSysPlugin:
    """The protocol is `wrapping.RayPlugin`. The whole life of a worker is recorded, as its trainer wants."""

    stock = "ray._private.runtime_env.rocprof_sys:RocProfSysPlugin"
    known_names = (
        "rocprof_sys ROCPROFSYS_DEFAULT_CONFIG _check_rocprof_sys_script _rocprof_sys_dir"
        " parse_rocprof_sys_config rocprof_sys_cmd rocprof_sys_env env_vars update"
    )

    def given(self, config: Any) -> Given:
        """Raises `ConfigError`."""
        if config != "default" and not isinstance(config, Mapping):
            expected = 'expected "default" or {"env": …, "args": …}'
            raise ConfigError(f'the runtime env\'s "_rocprof_sys" is {config!r}: {expected}')
        found = {"args": {"F": "true"}} if config == "default" else dict(config)
        args, env = (found.get(front_end.RAY_WORDS[ours]) or {} for ours in ("options", "env"))
        return Given(clean_options(args, "_rocprof_sys"), env)

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
    ) -> RocprofWrap:
        """Raises `CannotWrap`."""
        wrap = make_wrap(given, identity, None, False, env, folder)
        reason = await reason_against(wrap, context, trials, trial_env())
        if reason is not None:
            raise CannotWrap(does_not_work(wrap, reason))
        return wrap


PLUGIN = RocprofSysPlugin()


def does_not_work(wrap: RocprofWrap, reason: str) -> str:
    return f"`python -m rocprofsys {' '.join(wrap.words)} --` does not work: {reason}"


def make_wrap(
    given: Given,
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

    Raises `front_end.FrontEndError` when this node cannot run it.
    """
    found = front_end.find(env)
    host = env.get(env_names.NODE) or socket.gethostname()
    stem = report_names.process_report_stem(identity.worker, identity.rank, window, host, "%pid%")
    folder = session_folder
    if env.get(env_names.NODE_DIR):
        worker = report_names.safe_worker(identity.worker or report_names.NAMELESS)
        folder = Path(env[env_names.NODE_DIR], "inplace", front_end.NAME, worker, f"rank{identity.rank or 0}")
    own = {name: str(value) for name, value in given.variables.items()}
    variables = front_end.variables(str(folder), stem, own, windowed)
    os.makedirs(variables["ROCPROFSYS_OUTPUT_PATH"], mode=0o700, exist_ok=True)
    return RocprofWrap(found.package_folder, tuple(front_end.render(given.options)), variables)


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


def findings(quick: bool = False) -> Iterator[CheckResult]:
    """Only where there is an AMD GPU: elsewhere nobody misses it."""
    try:
        found = front_end.find()
    except front_end.FrontEndError as error:
        needed = os.path.exists("/dev/kfd") or os.environ.get(env_names.ROCPROF_SYS)
        yield CheckResult(
            front_end.TITLE,
            WARN if needed else OK,
            str(error) if needed else "not here, and no AMD GPU that would need it",
            "load ROCm's module, or set RLPROF_ROCPROF_SYS" if needed else "",
        )
        return
    yield CheckResult(front_end.TITLE, OK, str(found)[:200])
