"""`RayJob`: the whole chain as a callable for submitit, whose tasks, one a node, become the head and the
other nodes.
"""

from __future__ import annotations

import atexit
import contextlib
import dataclasses
import os
import shlex
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from rlprof_ops import env_names
from rlprof_ops.errors import RlprofError, UsageError
from rlprof_ops.host import command, foreign, ports
from rlprof_ops.job import attempt
from rlprof_ops.job.end_cause import EndCause
from rlprof_ops.job.folders import RunFolder
from rlprof_ops.job.knobs import Settings, home, read_knobs
from rlprof_ops.job.supervisor_env import HeadAddress, supervisor_env
from rlprof_ops.request import ProfileRequest, load_request, request_from_dict
from rlprof_ops.request.environ import REQUEST_VARIABLES
from rlprof_ops.slurm import client
from rlprof_ops.submitit_job import head_server, rendezvous, task_context
from rlprof_ops.submitit_job.run_summary import RunSummary
from rlprof_ops.submitit_job.task_process import TaskProcess, python_environment
from rlprof_ops.words import did_you_mean

if TYPE_CHECKING:
    from submitit.helpers import DelayedSubmission

_OWN = ("COMMAND", env_names.REQUEST, env_names.HOME, "BASE_LOG_DIR")
_ASKS = tuple(name for name in REQUEST_VARIABLES if name not in _OWN)
_LAST_SECONDS = 10.0  # of a job's time, left for submitit to save and to requeue
_HARVEST_AGAIN_S = 20.0


@dataclass
class RayJob:
    """Run `command` on a Ray cluster made of the job's nodes, with captures; call it through submitit.

    Args:
        command: a line for bash, or a list of words. Run on the first node, where the job was submitted from.
        request: a ProfileRequest, its plain data, or the path of a YAML file (read here and now). None:
            nothing is captured.
        settings: knobs (docs/knobs.md) by name. The shell's own RLPROF_ variables are not taken.
        log_dir: gets `<job id>-logs`; on shared storage. None: submitit's folder, which the debug executor
            does not tell: the current one.
        requeue: on a time limit or a preemption save the job for another start, which captures only what is
            missing.
            The command has to go on from its own checkpoint.

    Raises:
        UsageError: a wrong knob or request, all of them in one message, before anything is submitted.
    """

    command: str | Sequence[str]
    request: Any = None
    settings: Mapping[str, str] = field(default_factory=dict)
    log_dir: str | os.PathLike[str] | None = None
    requeue: bool = False

    def __post_init__(self) -> None:
        self.command = self.command if isinstance(self.command, str) else shlex.join(self.command)
        self.request = _as_request(self.request)
        self.settings = _checked(self.settings)
        self.log_dir = os.path.abspath(self.log_dir) if self.log_dir is not None else None
        self._process: TaskProcess | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_process": None}

    # ---- a task
    # ------------------------------------------------------------------------------------------------

    def __call__(self) -> RunSummary:
        """One task: node 0 is the head. Returns when the job has drained. Raises RlprofError when it could
        not start.
        """
        place = task_context.take(str(self.log_dir) if self.log_dir else None)
        run = RunFolder(place.run_dir)
        ends = _ExitCode(place)
        if place.rank == 0:
            env = self._open(place, run)
        else:
            seconds = float(Settings.load(self._knobs())["RLPROF_READY_SECONDS"])
            addresses = rendezvous.addresses_of_head(os.environ, place.nodes[0])
            number = rendezvous.number_of(place.job)
            found = rendezvous.wait(
                run,
                seconds,
                place.rank,
                len(place.nodes),
                lambda: head_server.ask(addresses, number, run.read_token, place.rank),
            )
            env = self._environment(place, run, found)
        self._process = TaskProcess(env)
        with self._signals(place), _when_submitit_gives_up(self._process):
            self._process.wait()
        ends.code = self._process.exit_code()
        harvest = _order_harvest(place, env) if env.get("RLPROF_HARVEST_JOB") == "1" else ""
        return dataclasses.replace(_summary(place, ends.code), harvest_job=harvest)

    def _open(self, place: task_context.TaskContext, run: RunFolder) -> dict[str, str]:
        """The first task's part: run folder, token, request, address and ports; the others learn them, or
        why not.
        """
        try:
            run.create()
        except FileExistsError:
            raise UsageError(
                f"log_dir: {run.path} is there already, from another job of this number or made by somebody"
                " else. Move it away, or give another log_dir."
            ) from None
        if place.cluster == "slurm":
            client.record_run_folder(place.job.partition(".")[0], run.path)
        try:
            run.write_token()
            for folder in place.earlier:
                _make_manifest(folder)
            (run.path / "request.json").write_text(self.request.to_json() + "\n", encoding="utf-8")
            gcs, control = ports.free_pair(rendezvous.number_of(place.job))
            settings = Settings.load(self._knobs())
            found = rendezvous.Rendezvous(
                rendezvous.own_address(os.environ),
                settings.number("PORT") or gcs,
                settings.number("RLPROF_CONTROL_PORT") or control,
            )
        except Exception as error:
            with contextlib.suppress(OSError):
                rendezvous.publish(run, rendezvous.Rendezvous(failed=str(error) or repr(error)))
            raise
        rendezvous.publish(run, found)
        with contextlib.suppress(OSError):  # then they find the file
            others = len(place.nodes) - 1
            if others:
                number = rendezvous.number_of(place.job)
                head_server.HeadServer(dataclasses.asdict(found), run.read_token(), number, others)
        return self._environment(place, run, found)

    def _knobs(self) -> dict[str, str]:
        return {**self.settings, "COMMAND": str(self.command)}

    def _environment(
        self, place: task_context.TaskContext, run: RunFolder, found: rendezvous.Rendezvous
    ) -> dict[str, str]:
        """What scripts/node.sh gets: this task's environment without anybody's knobs, ours, and the
        contract of ray.sub.
        """
        foreign = {*read_knobs(), env_names.REQUEST_JSON} - {
            env_names.NSYS,
            "OMP_NUM_THREADS",
            "RLPROF_SITE_ENV",
            "CONTAINER",
            "MOUNTS",
        }
        env = {
            name: value
            for name, value in os.environ.items()
            if name not in foreign and not name.startswith(("NRL_NSYS_", "NRL_TORCH_"))
        }
        if place.cluster != "slurm":
            env = {name: value for name, value in env.items() if not name.startswith("SLURM")}
        env |= self._knobs()
        env[env_names.REQUEST] = str(run.path / "request.json")
        if place.cluster != "slurm":
            env.pop("RLPROF_HARVEST_JOB", None)
        head = HeadAddress(found.head_ip, found.gcs_port, found.control_port)
        earlier = [attempt.number_of(attempt.of_folder(folder) or "") for folder in place.earlier]
        ours = supervisor_env(place.job, run, place.node, place.nodes, head, earlier)
        return python_environment(env | ours)

    # ---- signals
    # -----------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _signals(self, place: task_context.TaskContext) -> Any:
        """Pass an order to end on to the supervisor, which drains.

        submitit ignores SIGTERM and ends a job without `requeue` with an error at SIGUSR2; with `requeue` its
        handler stays, and calls `checkpoint`. Only the first task drains at SIGUSR2: its head tells the
        others.
        """
        process = self._process
        assert process is not None
        asks = {signal.SIGTERM: signal.SIGTERM, signal.SIGINT: signal.SIGTERM}
        if not self.requeue and place.rank == 0 and place.cluster in ("slurm", "local"):
            asks[_submitits_signal()] = signal.SIGUSR2

        def handler(number: int, frame: FrameType | None) -> None:
            process.tell(asks[signal.Signals(number)])

        try:
            before = {number: signal.signal(number, handler) for number in asks}
        except ValueError:  # not the main thread: signals are somebody else's
            before = {}
        try:
            yield
        finally:
            for number, old in before.items():
                signal.signal(number, old)

    def checkpoint(self) -> DelayedSubmission | None:
        """For submitit, at its signal: drain, then this job with what is missing; None when it was not
        asked to requeue.
        """
        from submitit.helpers import DelayedSubmission

        if self._process is not None:
            self._process.tell(signal.SIGUSR2)
            self._process.wait(self._seconds_left())
        if not self.requeue:
            return None
        return DelayedSubmission(dataclasses.replace(self))  # its supervisors know what is missing

    def _seconds_left(self) -> float:
        """For the drain: what it may take by the knobs, and no longer than the job has."""
        settings = Settings.load(self._knobs())
        seconds = float(
            settings.number("RLPROF_DRAIN_SECONDS") + settings.number("RLPROF_HARVEST_SECONDS") + 15
        )
        end = os.environ.get("SLURM_JOB_END_TIME", "")
        if end.isdigit():
            seconds = min(seconds, float(end) - time.time() - _LAST_SECONDS)
        return max(1.0, seconds)


def _order_harvest(place: task_context.TaskContext, env: Mapping[str, str]) -> str:
    """Submit the job that harvests this one, as ray.sub does; empty where it is harvested already, also by
    us since sbatch refuses.
    """
    if place.rank or (place.run_dir / "manifest.json").exists():
        return ""
    script = home() / "scripts" / "submit_harvest.sh"
    done = command.run(["bash", str(script), str(place.run_dir)], 60, env)
    if done.returncode == 0:
        return done.stdout.strip()
    print(f"rlprof: the harvest is no job of its own, sbatch said: {done.stderr.strip()}", file=sys.stderr)
    _make_manifest(place.run_dir)
    return ""


def _make_manifest(folder: Path) -> None:
    """Of an attempt that was killed before its harvest, as far as that can be done."""
    from rlprof_ops.collect.harvest.manifest import FILE
    from rlprof_ops.collect.harvest.run_harvest import harvest

    if not (folder / FILE).exists():
        with contextlib.suppress(RlprofError):
            harvest(folder, content_budget_s=_HARVEST_AGAIN_S)


def _summary(place: task_context.TaskContext, code: int) -> RunSummary:
    from rlprof_ops.collect.harvest.manifest import Manifest

    manifest = None
    end: dict[str, Any] = {}
    if place.rank == 0:
        with contextlib.suppress(RlprofError):
            manifest = Manifest.load(place.run_dir)
    with contextlib.suppress(OSError, ValueError, AttributeError):
        end = foreign.read(place.run_dir / "run.json").get("end") or {}
    cause = str(end.get("cause") or EndCause.STARTUP_FAILED)
    detail = str(end.get("detail") or "")
    return RunSummary(
        code, str(place.run_dir), cause, detail, place.rank, manifest, tuple(map(str, place.earlier))
    )


def _as_request(given: Any) -> ProfileRequest:
    if given is None:
        return ProfileRequest()
    if isinstance(given, ProfileRequest):
        return given
    if isinstance(given, Mapping):
        return request_from_dict(dict(given), origin="RayJob(request=…)")
    return load_request(os.fspath(given))


def _checked(settings: Mapping[str, str]) -> dict[str, str]:
    """The knobs as text; every wrong name and value in one UsageError."""
    knobs = read_knobs()
    problems = []
    for name in settings:
        if name in _OWN or name in _ASKS:
            problems.append(f"settings[{name!r}]: give it to RayJob itself (command=, request=, log_dir=).")
        elif name not in knobs:
            hint = did_you_mean(name, knobs)
            problems.append(f"settings[{name!r}]: no such knob.{hint} All knobs: docs/knobs.md.")
    text = {name: str(value) for name, value in settings.items()}
    if not problems:
        try:
            Settings.load(text)
        except UsageError as error:
            problems.append(str(error))
    if problems:
        raise UsageError("\n".join(problems))
    return text


def _submitits_signal() -> signal.Signals:
    return signal.Signals["SIG" + os.environ.get("SUBMITIT_PREEMPT_SIGNAL", "USR2")]


@contextlib.contextmanager
def _when_submitit_gives_up(process: TaskProcess) -> Any:
    """submitit raises from its handler when a job timed out too often; the job has drained by then, so it
    has a result.
    """
    try:
        yield
    except Exception as error:
        if type(error).__name__ != "UncompletedJobError" or not process.wait(60):
            raise


class _ExitCode:
    """Makes the first task of a Slurm job end with the command's exit code: submitit's own is 0 whatever the
    result says.

    Registered first, so it runs last of what the job registers for the interpreter's end.
    """

    def __init__(self, place: task_context.TaskContext) -> None:
        self.code = 0
        if place.cluster == "slurm" and place.rank == 0:
            atexit.register(self._leave)

    def _leave(self) -> None:
        if self.code:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(self.code & 0xFF)
