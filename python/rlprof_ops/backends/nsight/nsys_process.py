"""Commands of nsys that we run beside a training: in a process group of their own, and never recorded."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path

from rlprof_ops.backends.nsight import nsys_cli
from rlprof_ops.words import limit

_KILLED_S = 2.0
_OPEN_S = 60.0  # for nsys to open a masked copy


def folder_of(env: Mapping[str, str]) -> str:
    """Where a command of nsys runs. It looks for files of its own in the folder it is started in, and the
    trainer's may lie on storage that does not answer: then nobody ends the command, and it ends no window.
    """
    folder = env.get("TMPDIR") or "/tmp"
    return folder if os.path.isdir(folder) else "/"


def start(argv: list[str], tmpdir: str) -> subprocess.Popen[str]:
    """Start a command of nsys whose files go to `tmpdir`; its output and errors are one text. The signal that
    ends the training does not end it.

    Raises:
        OSError: there is no such program.
    """
    env = {**nsys_cli.client_env(os.environ), "TMPDIR": tmpdir}
    return subprocess.Popen(
        argv,
        cwd=folder_of(env),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        env=env,
        start_new_session=True,
    )


def end_group(process: subprocess.Popen[str]) -> None:
    """SIGKILL to a process that leads its group, and to its children; waits a little, since a child that left
    the group may hold the pipe.
    """
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.communicate(timeout=_KILLED_S)


def why_unreadable(original: Path, masked: Path) -> str:
    """What nsys, where it is installed, says of the masked copy of a report that it can read; empty when both
    are alike.
    """
    if masked.name.endswith(nsys_cli.RAW_SUFFIX) or nsys_cli.find() is None:
        return ""
    why = _export_fails(masked)
    return why if why and not _export_fails(original) else ""


def _export_fails(report: Path) -> str:
    with tempfile.TemporaryDirectory(prefix="rlprof-masked-") as folder:
        name = Path(folder) / "report.nsys-rep"
        name.symlink_to(report.resolve())
        argv = [nsys_cli.find() or "nsys", "export", "--type=info", "--force-overwrite=true"]
        argv += [f"--output={folder}/info", str(name)]
        process = start(argv, folder)
        try:
            said, _ = process.communicate(timeout=_OPEN_S)
        except subprocess.TimeoutExpired:
            end_group(process)
            return f"no answer within {limit(_OPEN_S)}"
        return said.strip()[-200:] or f"exit code {process.returncode}" if process.returncode else ""
