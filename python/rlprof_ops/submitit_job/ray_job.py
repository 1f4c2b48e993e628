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
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from rlprof_ops import env_names
from rlprof_ops.errors import RlprofError, UsageError
from rlprof_ops.host import atomic, command, foreign, ports
from rlprof_ops.job import attempt, harvest_job
from rlprof_ops.job.end_cause import EndCause
from rlprof_ops.job.folders import RunFolder
from rlprof_ops.job.knobs import (
    OF_BATCH_SCRIPT,
    WITHOUT_BATCH_SCRIPT,
    Settings,
    filled,
    home,
    read_knobs,
)
from rlprof_ops.job.supervisor_env import HeadAddress, node_command, python_environment, supervisor_env
from rlprof_ops.request import ProfileRequest, load_request, request_from_dict
from rlprof_ops.request.check import check_request
from rlprof_ops.request.environ import REQUEST_VARIABLES
from rlprof_ops.slurm import client
from rlprof_ops.submitit_job import head_server, rendezvous, task_commands, task_context
from rlprof_ops.submitit_job.run_summary import RunSummary
from rlprof_ops.supervisor.node.node_state import CAUSES, ToldToEnd
from rlprof_ops.supervisor.task_process import TaskProcess, handed_on
from rlprof_ops.words import did_you_mean

if TYPE_CHECKING:
    from submitit.helpers import DelayedSubmission

_OWN = ("COMMAND", env_names.REQUEST, env_names.HOME, "BASE_LOG_DIR")
_ASKS = tuple(name for name in REQUEST_VARIABLES if name not in _OWN)
_CLOSED = tuple(name for name in _ASKS if name != "RLPROF_OUTPUT_DIR")
_KEPT = (env_names.NSYS, "OMP_NUM_THREADS", "RLPROF_SITE_ENV", "CONTAINER", "MOUNTS")  # of the shell's
_OF_BATCH_SCRIPT_ALONE = (
    "ray.sub alone keeps it: here submitit makes the srun line. Give srun's own options to the executor"
    " (slurm_srun_args=['--container-image=…']), or submit ray.sub."
)


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
        check_request(self.request, knobs=_with_files(self.settings))
        self.log_dir = os.path.abspath(self.log_dir) if self.log_dir is not None else None
        self._process: TaskProcess | None = None
        self._told: signal.Signals | None = None  # the first order to end

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_process": None, "_told": None}

    # ---- a task
    # ------------------------------------------------------------------------------------------------

    def __call__(self) -> RunSummary:
        """One task: node 0 is the head. Returns when the job has drained. Raises RlprofError when it could
        not start.
        """
        place = task_context.take(str(self.log_dir) if self.log_dir else None)
        run = RunFolder(place.run_dir)
        ends = _ExitCode(place)
        self._process = self._told = None
        with handed_on(self._signals(place), self._tell):
            try:
                env = self._open(place, run) if place.rank == 0 else self._join(place, run)
            except ToldToEnd as told:
                return _summary(place, told.exit_code)
            self._process = TaskProcess(node_command(), env)
            if self._told is not None:
                self._process.tell(self._told)
            with _when_submitit_gives_up(self._process):
                self._process.wait()
            ends.code = self._process.exit_code()
            with _when_submitit_gives_up(self._process):
                task_commands.bring_home(place, env, ends.code)
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
            env = self._variables()
            ours = python_environment(env)
            task_commands.make_manifests(place.earlier, run, ours, lambda: self._told is not None)
            atomic.write(run.request, self.request.to_json() + "\n", mode=0o600)
            gcs, control = ports.free_pair(rendezvous.number_of(place.job))
            settings = Settings.load(env)
            found = rendezvous.Rendezvous(
                rendezvous.own_address(env if place.cluster == "slurm" else {}),
                settings.number("PORT") or gcs,
                settings.number("RLPROF_CONTROL_PORT") or control,
                place.cluster == "slurm" and client.counts_gpus(place.nodes[0]),
                client.kill_wait() if place.cluster == "slurm" else "",
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

    def _join(self, place: task_context.TaskContext, run: RunFolder) -> dict[str, str]:
        """Another task's part: wait for the first one. Raises RlprofError where that could not start or is
        not heard of, ToldToEnd when that order comes first.
        """
        addresses = rendezvous.addresses_of_head(os.environ, place.nodes[0])
        number = rendezvous.number_of(place.job)

        def ask() -> dict[str, Any] | None:
            if self._told is not None:
                raise ToldToEnd(CAUSES[self._told], "the first task had said where the head is")
            return head_server.ask(addresses, number, run.read_token, place.rank)

        seconds = float(Settings.load(self._variables())["RLPROF_READY_SECONDS"])
        found = rendezvous.wait(run, seconds, place.rank, len(place.nodes), ask)
        return self._environment(place, run, found)

    def _variables(self) -> dict[str, str]:
        own_folder = {"RLPROF_OUTPUT_DIR": ""} if self.request.output_dir else {}  # goes before the site's
        return _with_files({**self.settings, **own_folder, "COMMAND": str(self.command)})

    def _environment(
        self, place: task_context.TaskContext, run: RunFolder, found: rendezvous.Rendezvous
    ) -> dict[str, str]:
        """What scripts/node.sh gets: the job's variables, and the contract of ray.sub."""
        env = self._variables()
        if place.cluster != "slurm":
            env = {name: value for name, value in env.items() if not name.startswith("SLURM")}
        env[env_names.REQUEST] = str(run.request)
        harvests = place.cluster == "slurm" and harvest_job.is_wanted(
            Settings.load(env), len(place.nodes), env
        )
        head = HeadAddress(found.head_ip, found.gcs_port, found.control_port)
        earlier = [attempt.number_of(attempt.of_folder(folder) or "") for folder in place.earlier]
        ours = supervisor_env(
            place.job, run, place.node, place.nodes, head, earlier,
            harvest_job=harvests, slurm_counts_gpus=found.slurm_counts_gpus, kill_wait=found.kill_wait,
        )  # fmt: skip
        return python_environment(env | ours)

    # ---- signals
    # -----------------------------------------------------------------------------------------------

    def _signals(self, place: task_context.TaskContext) -> dict[signal.Signals, signal.Signals]:
        """What the supervisor, which drains, is told at which signal.

        submitit ignores SIGTERM and ends a job without `requeue` with an error at SIGUSR2; with `requeue` its
        handler stays, and calls `checkpoint`. Only the first task drains at SIGUSR2: its head tells the
        others.
        """
        asks = {signal.SIGTERM: signal.SIGTERM, signal.SIGINT: signal.SIGTERM}
        if not self.requeue and place.rank == 0 and place.cluster in ("slurm", "local"):
            asks[_submitits_signal()] = signal.SIGUSR2
        return asks

    def _tell(self, order: signal.Signals) -> None:
        """Tell the supervisor; keep an order that comes before it is started."""
        self._told = self._told or order
        if self._process is not None:
            self._process.tell(order)

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
        settings = Settings.load(self._variables())
        seconds = float(
            settings.number("RLPROF_DRAIN_SECONDS") + settings.number("RLPROF_HARVEST_SECONDS") + 15
        )
        return max(1.0, task_commands.seconds_within_job(seconds, os.environ))


def _order_harvest(place: task_context.TaskContext, env: Mapping[str, str]) -> str:
    """Submit the job that harvests this one, as ray.sub does; empty where it is harvested already, also by
    us since sbatch refuses.
    """
    from rlprof_ops.collect.harvest.manifest import Manifest

    if place.rank or Manifest.is_final(place.run_dir):
        return ""
    script = home() / "scripts" / "submit_harvest.sh"
    done = command.run(["bash", str(script), str(place.run_dir)], 60, env)
    if done.returncode == 0:
        return done.stdout.strip()
    print(f"rlprof: the harvest is no job of its own, sbatch said: {done.stderr.strip()}", file=sys.stderr)
    task_commands.harvest_here(place, env)
    return ""


def _summary(place: task_context.TaskContext, code: int) -> RunSummary:
    from rlprof_ops.collect.harvest.manifest import Manifest

    record = foreign.read_object(place.run_dir / "run.json")
    end = foreign.an_object(record.get("end"))
    manifest, asked = None, False
    if place.rank == 0:
        with contextlib.suppress(RlprofError):
            asked = bool(request_from_dict(foreign.an_object(record.get("request"))))
        with contextlib.suppress(RlprofError):
            manifest = Manifest.load(place.run_dir)
    cause = str(end.get("cause") or EndCause.STARTUP_FAILED)
    detail = str(end.get("detail") or "")
    earlier = tuple(map(str, place.earlier))
    return RunSummary(code, str(place.run_dir), cause, detail, place.rank, manifest, earlier, asked=asked)


def _as_request(given: Any) -> ProfileRequest:
    if given is None:
        return ProfileRequest()
    if isinstance(given, ProfileRequest):
        return given
    if isinstance(given, Mapping):
        return request_from_dict(dict(given), origin="RayJob(request=…)")
    return load_request(os.fspath(given))


def _with_files(knobs: Mapping[str, str]) -> dict[str, str]:
    """This process's environment without anybody's knobs, with `knobs` and what the files of site and trainer
    add. What is asked comes from RayJob alone; where reports go, a site may say.
    """
    foreign = {*read_knobs(), env_names.REQUEST_JSON} - {*_KEPT}
    env = {
        name: value
        for name, value in os.environ.items()
        if name not in foreign and not name.startswith(("NRL_NSYS_", "NRL_TORCH_"))
    }
    return filled({**env, **dict.fromkeys(_CLOSED, ""), **WITHOUT_BATCH_SCRIPT, **knobs})


def _checked(settings: Mapping[str, str]) -> dict[str, str]:
    """The knobs as text; every wrong name and value in one UsageError."""
    knobs = read_knobs()
    problems = []
    for name, value in settings.items():
        if name in _OWN or name in _ASKS:
            problems.append(f"settings[{name!r}]: give it to RayJob itself (command=, request=, log_dir=).")
        elif name in OF_BATCH_SCRIPT and value != WITHOUT_BATCH_SCRIPT.get(name):
            problems.append(f"settings[{name!r}]: {_OF_BATCH_SCRIPT_ALONE}")
        elif name not in knobs:
            hint = did_you_mean(name, knobs)
            problems.append(f"settings[{name!r}]: no such knob.{hint} All knobs: docs/knobs.md.")
    text = {name: str(value) for name, value in settings.items()}
    if not problems:
        try:
            Settings.load(_with_files(text))
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
