"""Commands of nsys that we run beside a training: in a process group of their own, and never recorded."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

from rlprof_ops.backends.nsight import nsys_cli
from rlprof_ops.backends.nsight.nsys_options import EXPORT_SUFFIX
from rlprof_ops.host.threads.own_thread import signals_for_a_child
from rlprof_ops.words import limit

_KILLED_S = 2.0
_OPEN_S = 60.0  # for nsys to open a masked copy


def folder_of(env: Mapping[str, str]) -> str:
    """Where a command of nsys runs. It looks for files of its own in the folder it is started in, and the
    trainer's may lie on storage that does not answer: then nobody ends the command, and it ends no window.
    """
    folder = env.get("TMPDIR") or "/tmp"
    return folder if os.path.isdir(folder) else "/"


def start(
    argv: list[str], tmpdir: str = "", env: Mapping[str, str] | None = None, stderr: int = subprocess.STDOUT
) -> subprocess.Popen[str]:
    """Start a command of nsys, without nsys's own injection in its environment (`env`; None: this process's).
    The signal that ends the training does not end it.

    Args:
        tmpdir: where its files go; "" leaves what the environment says.
        stderr: where its errors go, as for Popen: with its output they are one text.

    Raises:
        OSError: there is no such program.
    """
    client = nsys_cli.client_env(os.environ if env is None else env)
    if tmpdir:
        client = {**client, "TMPDIR": tmpdir}
    with signals_for_a_child():
        return subprocess.Popen(
            argv,
            cwd=folder_of(client),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
            errors="replace",
            env=client,
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
    """What nsys, where it is installed, says of the masked copy of a report that it can read, and SQLite of
    an export; empty when both are alike.
    """
    fault_of = _database_fault if masked.name.endswith(EXPORT_SUFFIX) else _export_fails
    if masked.name.endswith(nsys_cli.RAW_SUFFIX) or (fault_of is _export_fails and nsys_cli.find() is None):
        return ""
    why = fault_of(masked)
    return why if why and not fault_of(original) else ""


def _database_fault(export: Path) -> str:
    """What SQLite says of an export that is damaged; "" for a whole one, and for one too large to tell."""
    import sqlite3

    until = time.monotonic() + _OPEN_S
    try:
        with contextlib.closing(
            sqlite3.connect(f"{export.resolve().as_uri()}?immutable=1", uri=True)
        ) as file:
            file.set_progress_handler(lambda: time.monotonic() > until, 10_000)
            said = str(file.execute("PRAGMA quick_check(1)").fetchone()[0])
    except sqlite3.Error as error:
        return "" if time.monotonic() > until else str(error)
    return "" if said == "ok" else said


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
        except BaseException:
            end_group(process)
            raise
        return said.strip()[-200:] or f"exit code {process.returncode}" if process.returncode else ""
