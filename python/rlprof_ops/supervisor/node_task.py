"""One node's task: everything that can be checked before a process is started, then the keeper, and below it
the supervisor.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

from rlprof_ops import env_names
from rlprof_ops.errors import RlprofError, UsageError
from rlprof_ops.host import processes
from rlprof_ops.host.background import in_background
from rlprof_ops.host.ports import address_towards
from rlprof_ops.job import folders
from rlprof_ops.job.knobs import Settings
from rlprof_ops.job.node_context import NodeContext, node_name
from rlprof_ops.request import ProfileRequest, request_from_json
from rlprof_ops.submit.missing_captures import asked_at_first, asked_now
from rlprof_ops.supervisor.head import Head
from rlprof_ops.supervisor.keeper import SIGNALS, Keeper
from rlprof_ops.supervisor.node.driver_status import DriverStatus
from rlprof_ops.supervisor.node.journal import Journal
from rlprof_ops.supervisor.node.node import Node
from rlprof_ops.supervisor.node.node_state import EndOrder, NodeState, first_of
from rlprof_ops.supervisor.node.ray_process import gpu_count
from rlprof_ops.supervisor.worker import Worker

_FLUSH_SECONDS = 10.0
_STORAGE_SECONDS = 600.0  # for the run folder and the request, at the first start
_GIVE_UP_SECONDS = 5.0


def main() -> int:
    """The exit code of this node's task: on the head the job's own, elsewhere 0 unless the node never got
    up.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    try:
        settings = Settings.load(os.environ)
        place = find_node_context(os.environ, settings)
        os.environ.pop("RAY_AUTH_TOKEN", None)
        state = _make_state(settings, place)
    except RlprofError as error:
        return _refuse(error)
    cwd = Path.cwd()
    leave_storage()

    def give_up() -> None:
        processes.end(processes.of_job(place.job, place.folder.path), grace_s=_GIVE_UP_SECONDS)

    try:
        return Keeper(place.node, state, give_up).keep(
            lambda before: supervise(settings, place, cwd, before, state.driver)
        )
    finally:
        state.remove()
        place.folder.let_go()


def _make_state(settings: Settings, place: NodeContext) -> NodeState:
    """The node folder with the state of a start. Raises UsageError."""
    try:
        place.folder.create()
        return NodeState.make(place.folder.path)
    except OSError as error:
        raise UsageError(
            f"node {place.node}: RLPROF_NODE_ROOT={settings['RLPROF_NODE_ROOT']!r}: {error}"
        ) from error


def supervise(settings: Settings, place: NodeContext, cwd: Path, before: str, driver: DriverStatus) -> int:
    """In the keeper's child, from start to end: the node's exit code. `before`: how the supervisor ended in
    whose place this one is, "" for the first. `driver`: the keeper's word on it.
    """
    try:
        return asyncio.run(_supervise(settings, place, cwd, before, driver))
    except RlprofError as error:
        return _refuse(error)


async def _supervise(
    settings: Settings, place: NodeContext, cwd: Path, before: str, driver: DriverStatus
) -> int:
    state = NodeState.load(place.folder.path, driver)
    order = EndOrder(state)
    for unfinished in place.folder.keep.glob(".*"):  # of a supervisor that was killed in a write
        unfinished.unlink(missing_ok=True)
    token, request = await _what_is_asked(state, place, order)
    place = dataclasses.replace(place, token=token)
    name = "head" if place.is_head else place.node
    journal = Journal(
        place.run.logs / f"{name}.log",
        place.node,
        float(os.environ.get(env_names.BEGAN, time.time())),
        place.folder.logs / "supervisor.log",
        place.pinned_run(),
    )
    journal.phases_s = state.phases_s
    state.started_ns = state.started_ns or time.time_ns()
    state.save()
    # A process of the trainer may have another working directory.
    request = request.in_folder(str(cwd))
    node = Node(settings, request, place, journal, state, order, cwd, before)
    try:
        return await (Head(node) if place.is_head else Worker(node)).run()
    finally:
        journal.writer.flush(_FLUSH_SECONDS)
        if state.keeper and state.drained and os.getppid() != state.keeper:  # nobody else is left to do it
            state.remove()
            place.folder.let_go()


async def _what_is_asked(state: NodeState, place: NodeContext, order: EndOrder) -> tuple[str, ProfileRequest]:
    """The job's token and request: from the node's state, for the first supervisor from shared storage.

    Raises UsageError for what a job cannot run with, ToldToEnd when that order comes before the storage
    answers.
    """
    if not state.token:
        look = in_background(_read_what_is_asked, place, seconds=_STORAGE_SECONDS)
        try:
            state.token, state.request, state.notes, state.whole_request = await first_of(
                look, order.raise_when_given(f"the storage of {place.run.path} answered")
            )
        except TimeoutError as error:
            raise UsageError(f"node {place.node}: the storage of {place.run.path}: {error}") from error
    return state.token, request_from_json(state.request, "the node's state")


def _read_what_is_asked(place: NodeContext) -> tuple[str, str, tuple[str, ...], str]:
    """Token, request, notes on it, and the whole request of a job that goes on."""
    job, run, whole = place.job, place.run.path, ""
    try:
        token, request = place.run.read_token(), asked_now(job, run, os.environ)
        if os.environ.get(env_names.EARLIER_ATTEMPTS) and (asked := asked_at_first(job, run, os.environ)):
            whole = asked.to_json()
        place.pinned_run().open().close()  # from now on it is known which folder is this job's own
        return token, request.to_json(), request.notes, whole
    except OSError as error:
        raise UsageError(
            f"node {place.node}: the job's token {place.run.token} cannot be read ({error.strerror}):"
            " BASE_LOG_DIR has to be on storage that all nodes share and, with a container, in MOUNTS."
        ) from error


def find_node_context(env: Mapping[str, str], settings: Settings) -> NodeContext:
    """Read what ray.sub (or `rlprof demo`) set for this node; its token is still to come."""
    job = env.get(env_names.JOB) or folders.job_name(env)
    head_ip = env[env_names.HEAD_IP]
    return NodeContext(
        job=job,
        node=node_name(env),
        ip=address_towards(head_ip),
        head_ip=head_ip,
        gcs_port=int(env[env_names.GCS_PORT]),
        control_port=int(env[env_names.CONTROL_PORT_CHOSEN]),
        is_head=env.get("SLURM_NODEID", "0") == "0",
        nodes=tuple(env[env_names.NODES].split()),
        run=folders.RunFolder(Path(env[env_names.RUN_DIR])),
        folder=folders.node_folder(Path(settings["RLPROF_NODE_ROOT"]), job, folders.job_mark(env)),
        gpus=gpu_count(settings, env),
        token="",
    )


def leave_storage() -> None:
    """Go where every look at the own folder, as each import takes one, is answered: the job may have been
    submitted from storage that hangs later. Ray and the driver begin where they always did.
    """
    here = os.getcwd()
    if sys.path[0] == here and not getattr(sys.flags, "safe_path", False):
        del sys.path[0]
    os.chdir("/")


def _refuse(error: RlprofError) -> int:
    """Say why this node does not begin, and tell the other nodes to end in order, where Slurm's commands are
    at hand; see node::end_step in scripts/node.sh.
    """
    print(f"rlprof: {error}", file=sys.stderr, flush=True)
    env, scancel = os.environ, shutil.which("scancel")
    if scancel and env.get("SLURM_STEP_ID") and env.get("RLPROF_MIN_NODES", "0") == "0":
        step = f"{env['SLURM_JOB_ID']}.{env['SLURM_STEP_ID']}"
        with contextlib.suppress(OSError, subprocess.TimeoutExpired):
            subprocess.run([scancel, "--signal=TERM", step], check=False, timeout=20)
    return error.exit_code
