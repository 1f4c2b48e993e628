"""A job's logs by what they are of: the driver, the head, a node, the batch script; read whole, from the
end, or followed.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import BinaryIO

from rlprof_ops.collect.harvest.manifest_table import printable
from rlprof_ops.errors import RlprofError, UsageError
from rlprof_ops.host import foreign
from rlprof_ops.job.run_folder import Job, find
from rlprof_ops.operate.job_status import View, look
from rlprof_ops.request.problems import nearest

_CHUNK = 1 << 16
_PAUSE_S = 0.3
_ASK_S = 3.0  # how often Slurm is asked whether the job is over


@dataclass(frozen=True)
class Source:
    """One log of a job: `what` is driver, head, job (the batch script's own output), or a node's name or
    number.
    """

    job: str
    what: str

    def look(self) -> tuple[Path | None, bool]:
        """The file, None while there is none, and whether the job is over.

        Raises UsageError for a node that is not the job's.
        """
        job = find(self.job)
        view = look(job)
        path = self._path(job, view)
        return path if path is not None and path.exists() else None, view.has_ended or view.state == "unknown"

    def file(self) -> Path:
        """The file that is there now; for the driver before it runs, the head's log or the job's output.
        Raises RlprofError.
        """
        path, _ = self.look()
        for what in ("head", "job") if self.what == "driver" else ():
            path = path or replace(self, what=what).look()[0]
        if path is None:
            raise RlprofError(
                f"job {self.job}: there is no log of {self.what!r} (yet); see rlprof status {self.job}"
            )
        return path

    def _path(self, job: Job, view: View) -> Path | None:
        if self.what == "job":
            return Path(job.slurm.output) if job.slurm and job.slurm.output else None
        if job.run is None:
            return None
        folder = job.run / "logs"
        if self.what in ("driver", "head"):
            return folder / f"{self.what}.log"
        if not view.nodes:
            return None
        node = node_of(self.what, view.nodes)
        return folder / ("head.log" if node == view.nodes[0] else f"{node}.log")


def node_of(text: str, nodes: tuple[str, ...]) -> str:
    """A node's name from its name or its number, 0 for the head. Raises UsageError with the job's nodes."""
    node = nodes[int(text)] if text.isdecimal() and len(text) < 7 and int(text) < len(nodes) else text
    if node not in nodes:
        raise UsageError(
            f"--node {text}: the job has {', '.join(nodes)}, and 0 is the head.{nearest(text, nodes)}"
        )
    return node


def more_of(run: Path, node: str) -> list[str]:
    """Further logs of a node, relative to the run folder: its processes' own, and Ray's."""
    found = sorted(path for path in (run / "logs" / node).glob("*") if path.is_file())
    folders = sorted((run / "ray" / node).glob("*/logs"))
    return [printable(os.path.relpath(path, run)) for path in (*found, *folders)]


def copy(path: Path, write: Callable[[bytes], object], lines: int | None = None) -> int:
    """Write the file, or its last `lines` lines; gives the position after it. Raises RlprofError when it
    cannot be read.
    """
    try:
        with foreign.open_plain(path) as file:
            file.seek(start_of(file, lines))
            while chunk := file.read(_CHUNK):
                write(chunk)
            return file.tell()
    except FileNotFoundError:
        raise RlprofError(f"{path} does not exist (yet)") from None
    except OSError as error:
        raise RlprofError(f"{path} cannot be read: {error.strerror}") from error


def start_of(file: BinaryIO, lines: int | None) -> int:
    """Where the last `lines` lines begin; 0 for None."""
    end = file.seek(0, os.SEEK_END)
    if lines is None or end == 0:
        return 0
    if lines == 0:
        return end
    position, wanted = end - 1, lines  # the newline at the very end ends the last line, it begins none
    while position > 0:
        step = min(_CHUNK, position)
        position -= step
        file.seek(position)
        block = file.read(step)
        at = len(block)
        while (at := block.rfind(b"\n", 0, at)) >= 0:
            wanted -= 1
            if wanted == 0:
                return position + at + 1
    return 0


def follow(
    source: Source,
    write: Callable[[bytes], object],
    lines: int | None = None,
    sleep: Callable[[float], None] = time.sleep,
    clock: Callable[[], float] = time.monotonic,
) -> None:
    """Write the log and what is added to it until the job is over. Waits for a log that is not there yet."""
    path, over = source.look()
    asked, position = clock(), -1
    while True:
        if path is not None:
            position = _more(path, position, write, lines)
        if over:
            return
        sleep(_PAUSE_S)
        if clock() - asked >= _ASK_S:
            found, over = source.look()
            path, asked = path or found, clock()


def _more(path: Path, position: int, write: Callable[[bytes], object], lines: int | None) -> int:
    """Write what stands after `position`, at first (-1) the last `lines` lines; gives the new position."""
    with foreign.open_plain(path) as file:
        if position < 0:
            position = start_of(file, lines)
        elif file.seek(0, os.SEEK_END) < position:
            position = 0  # replaced or cut: from its start again
        file.seek(position)
        while chunk := file.read(_CHUNK):
            write(chunk)
        return file.tell()
