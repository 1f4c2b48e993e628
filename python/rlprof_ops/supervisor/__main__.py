"""`python -m rlprof_ops.supervisor`: the supervisor of one node of a job, started by scripts/node.sh under
srun.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

from rlprof_ops import env_names
from rlprof_ops.errors import RlprofError, UsageError
from rlprof_ops.host.ports import address_towards
from rlprof_ops.job import folders
from rlprof_ops.job.knobs import Settings
from rlprof_ops.job.node_context import NodeContext, node_name
from rlprof_ops.request import load_request
from rlprof_ops.supervisor.head import Head
from rlprof_ops.supervisor.node_drain import Journal
from rlprof_ops.supervisor.ray_process import gpu_count
from rlprof_ops.supervisor.takeover.keeper import Keeper
from rlprof_ops.supervisor.takeover.reins import Reins
from rlprof_ops.supervisor.worker import Worker

_FLUSH_SECONDS = 10.0


def find_node_context(env: Mapping[str, str], settings: Settings) -> NodeContext:
    """Read what ray.sub (or `rlprof demo`) set for this node. Raises UsageError when the run folder is not
    visible.
    """
    job = env.get(env_names.JOB) or folders.job_name(env)
    node = node_name(env)
    run = folders.RunFolder(Path(env[env_names.RUN_DIR]))
    try:
        token = run.read_token()
    except OSError as error:
        raise UsageError(
            f"node {node}: the job's token {run.token} cannot be read ({error.strerror}): BASE_LOG_DIR has to"
            " be on storage that all nodes share and, with a container, in MOUNTS."
        ) from error
    head_ip = env[env_names.HEAD_IP]
    return NodeContext(
        job=job,
        node=node,
        ip=address_towards(head_ip),
        head_ip=head_ip,
        gcs_port=int(env[env_names.GCS_PORT]),
        control_port=int(env[env_names.CONTROL_PORT_CHOSEN]),
        is_head=env.get("SLURM_NODEID", "0") == "0",
        nodes=tuple(env[env_names.NODES].split()),
        run=run,
        folder=folders.node_folder(Path(settings["RLPROF_NODE_ROOT"]), job, folders.job_mark(env)),
        gpus=gpu_count(settings, env),
        token=token,
    )


def make_supervisor(env: Mapping[str, str], reins: Reins | None) -> Head | Worker:
    """Check everything that can be checked before a process is started.

    Raises:
        UsageError: a setting, or a folder on this node, that a job cannot run with.
    """
    settings = Settings.load(env)
    request = load_request(env=env)
    place = find_node_context(env, settings)
    os.environ.pop("RAY_AUTH_TOKEN", None)
    run = place.pinned_run()
    try:
        place.folder.create()
        run.open().close()
    except OSError as error:
        raise UsageError(
            f"node {place.node}: RLPROF_NODE_ROOT={settings['RLPROF_NODE_ROOT']!r}: {error}"
        ) from error
    name = "head" if place.is_head else place.node
    journal = Journal(
        place.run.logs / f"{name}.log",
        place.node,
        float(env.get(env_names.BEGAN, time.time())),
        place.folder.logs / "supervisor.log",
        run,
    )
    return (Head if place.is_head else Worker)(settings, request, place, journal, reins)


def main(reins: Reins | None = None) -> int:
    """The exit code of this node's task: on the head the job's own, elsewhere 0 unless the node never got
    up.
    """
    try:
        supervisor = make_supervisor(os.environ, reins)
        leave_storage()
        try:
            return asyncio.run(supervisor.run())
        finally:
            supervisor.journal.writer.flush(_FLUSH_SECONDS)
            supervisor.place.folder.let_go()
    except RlprofError as error:
        print(f"rlprof: {error}", file=sys.stderr, flush=True)
        end_step(os.environ)
        return error.exit_code


def leave_storage() -> None:
    """Go where every look at the own folder, as each import takes one, is answered: the job may have been
    submitted from storage that hangs later. Ray and the driver begin where they always did.
    """
    here = os.getcwd()
    if sys.path[0] == here and not getattr(sys.flags, "safe_path", False):
        del sys.path[0]
    os.chdir("/")


def end_step(env: Mapping[str, str]) -> None:
    """Tell the other nodes to end in order, where Slurm's commands are at hand; see node::end_step in
    scripts/node.sh.
    """
    scancel = shutil.which("scancel")
    if scancel and env.get("SLURM_STEP_ID") and env.get("RLPROF_MIN_NODES", "0") == "0":
        step = f"{env['SLURM_JOB_ID']}.{env['SLURM_STEP_ID']}"
        with contextlib.suppress(OSError, subprocess.TimeoutExpired):
            subprocess.run([scancel, "--signal=TERM", step], check=False, timeout=20)


if __name__ == "__main__":
    sys.exit(Keeper().keep(main))
