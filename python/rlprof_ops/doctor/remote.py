"""The doctor on compute nodes: one short srun step, one task a node, its answers read from its output."""

from __future__ import annotations

import os
import secrets
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from rlprof_ops.check_result import FAIL, CheckResult, last_line
from rlprof_ops.doctor.node_checks import joined
from rlprof_ops.errors import RlprofError
from rlprof_ops.job.knobs import home, import_path
from rlprof_ops.words import limit

_MEETING = 0.75  # of the whole time, until when nodes wait for each other: the other checks come after it


@dataclass(frozen=True)
class NodeSelection:
    """`nodes` compute nodes of a new short job, or all nodes of `job`; inside `container` when set, with
    `node_root` of the host in it as a job has it. `apptainer`: the words of `apptainer exec`; None for pyxis.
    """

    nodes: int = 0
    job: str = ""
    container: str = ""
    mounts: str = ""
    node_root: str = ""
    apptainer: tuple[str, ...] | None = None
    python: str = ""
    srun_args: tuple[str, ...] = ()
    seconds: float = 300

    def argv(self, folder: Path, quick: bool) -> list[str]:
        """The srun line. `folder` is the canary's."""
        line = ["srun", "--mpi=none", "--kill-on-bad-exit=0", "--ntasks-per-node=1"]
        if self.job:
            line += [f"--jobid={self.job}", "--overlap"]
        else:
            line += [
                f"--nodes={self.nodes}",
                f"--ntasks={self.nodes}",
                "--job-name=rlprof-doctor",
                f"--time={max(1, int(self.seconds // 60))}",
            ]
        line += self.srun_args
        if self.container:
            line += self._into(folder)
        python = self.python or ("python3" if self.container else sys.executable)
        program = [
            python,
            "-m",
            "rlprof_ops.doctor.node_checks",
            f"--folder={folder}",
            f"--seconds={_MEETING * self.seconds:g}",
            f"--until={time.time() + _MEETING * self.seconds:.0f}",
            *(["--quick"] if quick else []),
        ]
        # Not srun's --export: it would drop the rest of the environment, or be lost in a container.
        path = f"export PYTHONPATH={shlex.quote(import_path())}${{PYTHONPATH:+:$PYTHONPATH}}"
        lacks = f"rlprof: no Python: {python!r} is not there. Name one with --python"
        lacks += " that the image has, or set RLPROF_VENV." if self.container else " that every node has."
        look = (
            f"command -v {shlex.quote(python)} > /dev/null || {{ echo {shlex.quote(lacks)} >&2; exit 127; }}"
        )
        return [*line, "bash", "-c", f"{path}; {look}; exec {shlex.join(program)}"]

    def _into(self, folder: Path) -> list[str]:
        """The words that lead into the container. Parents first, as in a job: the shared folder itself, so
        that its own space is measured.
        """
        ours = [self.node_root, str(home()), import_path(), str(folder.parent)]
        taken = {mount.split(":")[1] for mount in self.mounts.split(",") if ":" in mount}
        mounts = [mount for mount in self.mounts.split(",") if mount]
        mounts += [f"{path}:{path}" for path in dict.fromkeys(ours) if path and path not in taken]
        listed = ",".join(
            sorted(mounts, key=lambda mount: mount.partition(":")[2].partition(":")[0].count("/"))
        )
        if self.apptainer is not None:
            return ["apptainer", "exec", *self.apptainer, "--bind", listed, "--pwd", "/", self.container]
        return [
            f"--container-image={self.container}",
            f"--container-mounts={listed}",
            "--container-workdir=/",
            "--no-container-mount-home",
        ]


def examine(
    where: NodeSelection, shared: Path, quick: bool, progress: Callable[[str], None] = lambda text: None
) -> list[CheckResult]:
    """The findings of all nodes. `progress` is told once a second how long srun has been at it. Raises
    RlprofError when srun cannot be run or no node answered.
    """
    if shutil.which("srun") is None:
        raise RlprofError("no srun on PATH: compute nodes cannot be asked from here; run it on a login node")
    folder = shared / f".rlprof-doctor-{secrets.token_hex(4)}"
    try:
        folder.mkdir(parents=True)
    except OSError as error:
        raise RlprofError(
            f"--shared {shared}: {error.strerror}; give a folder that you may write, on storage that all"
            " nodes mount"
        ) from error
    try:
        return _run(where.argv(folder, quick), where.seconds, progress)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _run(argv: list[str], seconds: float, progress: Callable[[str], None]) -> list[CheckResult]:
    # The variables of a job that we may be in ourselves would bend the new one.
    env = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("SLURM_", "SBATCH_", "PYXIS_")) or name == "SLURM_CONF"
    }
    process = subprocess.Popen(
        argv,
        env=env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
    )
    try:
        out, err = _communicate(process, seconds, progress)
    except subprocess.TimeoutExpired:
        process.terminate()  # srun cancels what it asked for
        try:
            out, err = process.communicate(timeout=20)
        except subprocess.TimeoutExpired:
            process.kill()
            out, err = process.communicate()
        err += f"\nnot done after {limit(seconds)} (--wait): the nodes are busy, or a check hangs"
    found = joined(out)
    if not found:
        raise RlprofError(
            f"no node answered: {last_line(err) or 'srun said nothing'}\nThe line was: {shlex.join(argv)}"
        )
    if process.returncode:
        found.append(
            CheckResult(
                "srun",
                FAIL,
                f"exit code {process.returncode}: {last_line(err)}",
                "see the nodes that are missing above",
                "compute",
            )
        )
    return found


def _communicate(
    process: subprocess.Popen[str], seconds: float, progress: Callable[[str], None]
) -> tuple[str, str]:
    """Both outputs; raises subprocess.TimeoutExpired after `seconds`."""
    began = time.monotonic()
    while True:
        waited = time.monotonic() - began
        progress(f"compute nodes: {limit(waited)}, queueing included")
        try:
            return process.communicate(timeout=min(1.0, max(0.01, seconds - waited)))
        except subprocess.TimeoutExpired:
            if time.monotonic() - began >= seconds:
                raise
