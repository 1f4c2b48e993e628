"""Our own commands beside a task's supervisor, each in a process of its own and within a deadline: before it
the manifests of earlier attempts are made; after it what a supervisor that was killed has left on the node is
brought home, as the batch script does it (job::salvage in scripts/lib/job.sh).
"""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from rlprof_ops import env_names
from rlprof_ops.collect.harvest.manifest import Manifest
from rlprof_ops.errors import RlprofError
from rlprof_ops.host import background, command, foreign, processes
from rlprof_ops.job.folders import RunFolder
from rlprof_ops.job.harvest_job import harvest_words
from rlprof_ops.job.knobs import Settings
from rlprof_ops.job.supervisor_env import node_command
from rlprof_ops.submitit_job.task_context import LOOK_S, TaskContext
from rlprof_ops.supervisor import job_end, keeper, salvage

LAST_S = 10.0  # of a job's time, left for submitit to save and to requeue
_HARVEST_LOG, _SALVAGE_LOG = "harvest.log", "salvage.log"
_EARLIER_S = 120.0  # for the manifests of all attempts that left none
_MORE_S = 10.0  # for a salvage, beyond its drain
_HEADLESS_S = 30.0  # in which a node waits for another head, before it drains
_PAUSE_S = 0.5
_OVER = "over_"  # in control/, with a node's name: its task has ended, and all is home that can be


def make_manifests(
    folders: Iterable[Path], run: RunFolder, env: Mapping[str, str], told: Callable[[], bool] = lambda: False
) -> None:
    """Of attempts that were killed before their harvest, or were harvested while they ran alone, as far as
    that can be done in time and before the job is `told` to end. What goes wrong there keeps nothing from
    starting; logs are those of `run`.
    """
    until, log = time.monotonic() + _EARLIER_S, run.logs / _HARVEST_LOG
    for folder in folders:
        seconds = until - time.monotonic()
        made = False
        with contextlib.suppress(OSError):
            made = background.in_time(Manifest.is_final, folder, seconds=max(1.0, min(LOOK_S, seconds)))
            if not made and seconds > 0 and not told():
                _command(seconds, env, log, "rlprof_ops", *harvest_words(folder, seconds), told=told)
                made = background.in_time(Manifest.is_final, folder, seconds=LOOK_S)
        if not made:
            print(
                f"rlprof: {folder} has no manifest of its end, and none could be made ({log})",
                file=sys.stderr,
            )


def bring_home(place: TaskContext, env: Mapping[str, str], code: int) -> None:
    """What a supervisor that was killed has left on this task's node; it was given `env`, and its exit code
    was `code`. The first task waits for what the other nodes' have left, and makes manifest and report again.

    Says so where the storage does not answer.
    """
    try:
        _TaskEnd(place, env, code).bring_home()
    except (OSError, RlprofError) as error:
        _say(
            place.node, f"{place.run_dir}: {error}; what it did not take is on the nodes, in RLPROF_NODE_ROOT"
        )


def harvest_here(place: TaskContext, env: Mapping[str, str]) -> None:
    """Manifest and report by this task, where no job of their own could be submitted."""
    try:
        _TaskEnd(place, {**env, "RLPROF_HARVEST_JOB": "0"}, 0).harvest()
    except (OSError, RlprofError) as error:
        _say(place.node, f"{place.run_dir}: {error}; no manifest: rlprof harvest {place.run_dir}")


def seconds_within_job(asked_s: float, env: Mapping[str, str]) -> float:
    """`asked_s`, and no longer than the job has."""
    return max(0.0, job_end.seconds_of_job(asked_s + LAST_S, env) - LAST_S)


class _TaskEnd:
    def __init__(self, place: TaskContext, env: Mapping[str, str], code: int) -> None:
        self._place, self._env = place, {**env, env_names.STEP_CODE: str(code)}
        self._run, self._settings = RunFolder(place.run_dir), Settings.load(env)

    def bring_home(self) -> None:
        node, is_first = self._place.node, self._place.rank == 0
        nodes = self._place.nodes if is_first else (node,)
        if not self._behind(nodes):
            return
        until = time.monotonic() + self._seconds(_HEADLESS_S + _MORE_S, 2 * ("RLPROF_DRAIN_SECONDS",))
        self._wait_for_orphan()
        behind = self._behind(nodes)
        if node in behind:
            self._salvage()
        if is_first and behind:
            self._wait_for_others(behind - {node}, until)
            self.harvest()
        elif not is_first:
            background.in_time(self._over(node).touch, seconds=LOOK_S)

    def _seconds(self, more_s: float, knobs: Iterable[str]) -> float:
        """The sum of knobs and `more_s`, and no longer than the job has."""
        return seconds_within_job(sum(map(self._settings.number, knobs)) + more_s, self._env)

    def _behind(self, nodes: Iterable[str]) -> set[str]:
        """Those without a record that all is home. Raises TimeoutError."""
        return {node for node in nodes if not background.in_time(self._is_home, node, seconds=LOOK_S)}

    def _is_home(self, node: str) -> bool:
        return foreign.read_object(self._run.path / "nodes" / f"{node}.json").get("cleared") is True

    def _wait_for_orphan(self) -> None:
        """A supervisor whose keeper was killed drains the node by itself, and on the head harvests."""
        knobs = ("RLPROF_DRAIN_SECONDS", "RLPROF_HARVEST_SECONDS", "RLPROF_REPORT_SECONDS")
        until = time.monotonic() + self._seconds(_MORE_S, knobs)
        ours = processes.started_with(f"{env_names.RUN_DIR}={self._run.path}")
        orphans = [each for each in ours if each.name == keeper.NAME_OF_CHILD.decode()]
        while any(each.alive() for each in orphans) and time.monotonic() < until:
            time.sleep(_PAUSE_S)
        processes.end(orphans, grace_s=_PAUSE_S)

    def _salvage(self) -> None:
        began = background.in_time(self._run.run_json.exists, seconds=LOOK_S)
        if not began and self._place.rank:
            return  # no window was opened
        _say(self._place.node, "no record of a clean end: bringing home what is left here (logs/salvage.log)")
        if not began:
            self._command(LOOK_S, _SALVAGE_LOG, salvage.__name__, salvage.NEVER_BEGAN)
        seconds = self._seconds(_MORE_S, ("RLPROF_DRAIN_SECONDS",))
        if self._command(seconds, _SALVAGE_LOG, salvage.__name__) != 0:
            _say(self._place.node, "not everything came home (logs/salvage.log)")

    def _over(self, node: str) -> Path:
        return self._run.control / f"{_OVER}{node}"

    def _wait_for_others(self, nodes: set[str], until: float) -> None:
        """Until they are home or their tasks are over: a node that is dead costs the deadline. Not where the
        driver never began, so that no window was opened.
        """
        record = background.in_time(foreign.read_object, self._run.run_json, seconds=LOOK_S)
        if not foreign.an_object(record.get("driver")).get("started_ns"):
            return
        while nodes and time.monotonic() < until:
            time.sleep(_PAUSE_S)
            over = {node for node in nodes if background.in_time(self._over(node).exists, seconds=LOOK_S)}
            nodes = self._behind(nodes - over)
        if nodes:
            _say(", ".join(sorted(nodes)), "no word of an end: the manifest has what has come home so far")

    def harvest(self) -> None:
        """As the head's supervisor does it where no job of its own does."""
        if self._env.get("RLPROF_HARVEST_JOB") == "1":
            return
        if seconds := self._seconds(0, ("RLPROF_HARVEST_SECONDS",)):
            self._command(seconds, _HARVEST_LOG, "rlprof_ops", *harvest_words(self._run.path, seconds))
        if (seconds := self._seconds(0, ("RLPROF_REPORT_SECONDS",))) and background.in_time(
            job_end.has_something, self._run.path, seconds=LOOK_S
        ):
            self._command(seconds, _HARVEST_LOG, "rlprof_ops", "report", str(self._run.path))

    def _command(self, seconds: float, log: str, *module: str) -> int | None:
        return _command(seconds, self._env, self._run.logs / log, *module)


def _command(
    seconds: float,
    env: Mapping[str, str],
    log: Path,
    *module: str,
    told: Callable[[], bool] = lambda: False,
) -> int | None:
    """A module of ours with its arguments, as a node's task but for its Python: this one has it for sure."""
    python = {"RLPROF_VENV": "", "RLPROF_PYTHON": sys.executable}
    return command.logged(node_command(*module), seconds, {**env, **python}, log, told)


def _say(node: str, text: str) -> None:
    print(f"rlprof: node {node}: {text}", file=sys.stderr)
