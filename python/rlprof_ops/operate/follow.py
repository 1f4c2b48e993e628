"""Follows a job to its end: a live view on a terminal, a line for each change elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from rlprof_ops.job import attempt
from rlprof_ops.job.run_folder import Job
from rlprof_ops.operate.job_status import View, look
from rlprof_ops.slurm import client
from rlprof_ops.slurm.client import SlurmJob

RUNNING_S = 2.0
WAITING_MOST_S = 15.0
SLURM_S = 30.0  # between two questions to Slurm while the job runs and its head tells how it stands
_GONE_LOOKS = 3
_NAMES_MOST = 8


def follow(
    job: str,
    folder: Path,
    show: Callable[[View], None],
    *,
    sleep: Callable[[float], None] = time.sleep,
    deadline_s: float | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> View:
    """Look again and again until the job is over; `show` gets every look. The last view is returned.

    Every two seconds while it runs, up to fifteen while it or its harvest waits: Slurm's controller is
    everybody's, so that a running job's head is asked instead. Returns a view that is not over when
    `deadline_s` has passed.
    """
    pause, unknown, began = RUNNING_S, 0, clock()
    known: Job | None = None
    ended: SlurmJob | None = None  # Slurm forgets it while its harvest waits for a node
    asked = began
    while True:
        if known is None or clock() - asked >= SLURM_S:
            known, asked = current(job, folder), clock()
            ended = known.slurm if known.slurm is not None and known.slurm.ended else ended
            known = replace(known, slurm=known.slurm or ended)
        view = look(known)
        show(view)
        if view.state != "running" or view.nodes_up is None:
            known = None
        unknown = unknown + 1 if view.state == "unknown" else 0
        late = deadline_s is not None and clock() - began > deadline_s
        if view.over or late or unknown >= _GONE_LOOKS:
            return view
        pause = min(pause * 1.3, WAITING_MOST_S) if view.state in ("waiting", "harvesting") else RUNNING_S
        sleep(pause)


def current(job: str, folder: Path) -> Job:
    """The job with its newest run folder: a requeued one goes on in `<job>.r<N>-logs`."""
    known = client.show(job)
    restarts = known.restarts if known else 0
    name = attempt.name(attempt.job_of(job), restarts) if restarts else job
    newest = folder.parent / attempt.folder_name(name)
    return Job(name, newest if newest.is_dir() else folder if folder.is_dir() else None, known)


class Lines:
    """One line for each change, with the time: for logs and pipes."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._last = ""

    def __call__(self, view: View) -> None:
        line = view.line()
        if line != self._last:
            self._say(f"{time.strftime('%H:%M:%S')} job {view.job}: {line}")
        self._last = line

    def __enter__(self) -> Lines:
        return self

    def __exit__(self, *error: object) -> None:
        return None


class Panel:
    """The same as a small table that stands still, with rich."""

    def __init__(self, live: Any) -> None:
        self._live = live

    def __call__(self, view: View) -> None:
        from rich.table import Table
        from rich.text import Text

        table = Table(
            show_header=False, title=f"job {view.job}", title_justify="left", box=None, pad_edge=False
        )
        for name, value in rows(view):
            table.add_row(Text(name, style="bold"), Text(value))
        self._live.update(table, refresh=True)

    def __enter__(self) -> Panel:
        self._live.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self._live.__exit__(*error)


def rows(view: View) -> list[tuple[str, str]]:
    """A view as names and values, for people; what is not known is left out."""
    from rlprof_ops.collect.harvest.manifest_table import printable

    state = view.state + (f" ({view.slurm_state})" if view.slurm_state else "")
    nodes = f"{view.node_count}" + (
        f", {view.nodes_up} up" if view.nodes_up is not None and not view.has_ended else ""
    )
    limit = f" of {view.time_limit}" if view.time_limit else ""
    exit_code = "" if view.exit_code is None else str(view.exit_code)
    ended = (
        f"{view.cause}{': ' if view.detail else ''}{view.detail.partition(chr(10))[0]}"
        if view.cause != "running"
        else ""
    )
    found = [
        ("state", state),
        ("reason", view.reason if view.state == "waiting" else ""),
        ("harvest", view.harvest.removeprefix("the harvest, ")),
        ("nodes", nodes if view.node_count else ""),
        ("names", ", ".join(view.nodes[:_NAMES_MOST]) + (", …" if len(view.nodes) > _NAMES_MOST else "")),
        ("time", f"{view.elapsed}{limit}" if view.elapsed else ""),
        ("step", "" if view.step is None else str(view.step)),
        ("captures", view.captures.said() if view.run_dir else ""),
        ("found", view.found),
        ("waits for", view.waiting if not view.has_ended else ""),
        ("end", ended),
        ("exit code", exit_code),
        ("run folder", view.run_dir or "none yet"),
    ]
    return [(name, printable(value)) for name, value in found if value]


def shower(say: Callable[[str], None], stream: Any = None) -> Any:
    """A `Panel` where the output is a terminal and rich is there, else `Lines`. Use it in a `with`."""
    stream = stream or sys.stdout
    if stream.isatty():
        try:
            from rich.console import Console
            from rich.live import Live
        except ImportError:
            pass
        else:
            return Panel(Live(console=Console(file=stream), auto_refresh=False, transient=True))
    return Lines(say)
