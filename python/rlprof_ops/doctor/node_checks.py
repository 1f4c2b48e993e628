"""`python -m rlprof_ops.doctor.node_checks`: all checks of one node, as one line of JSON."""

from __future__ import annotations

import argparse
import base64
import functools
import json
import os
import sys
from collections.abc import Callable, Iterable
from pathlib import Path

from rlprof_ops import backends
from rlprof_ops.backends.contract import load
from rlprof_ops.check_result import CheckResult, run_all
from rlprof_ops.doctor import node_resources, profilers, shared_storage, software
from rlprof_ops.job.knobs import Settings

MARK = "rlprof-doctor:"
_PIECE = 600  # srun passes a line on whole up to about a kilobyte; longer ones of several tasks are mixed


def here(
    settings: Settings,
    folder: Path | None,
    *,
    quick: bool,
    place: str,
    progress: Callable[[str], None] = lambda name: None,
) -> list[CheckResult]:
    """What can be told of this machine alone. `quick` leaves out what takes seconds: the trial capture,
    torch.
    """
    checks: dict[str, Callable[[], Iterable[CheckResult]]] = {
        "python": software.python,
        "ray": software.ray,
        "nvtx": software.nvtx,
        **{
            each.title: functools.partial(load(each.doctor), quick)
            for each in map(backends.get, backends.names_allowed())
            if each.doctor
        },
        "perf_event_paranoid": profilers.perf_event_paranoid,
        "GPU counters": profilers.cupti,
        "other profilers": profilers.other_users,
        "room": lambda: node_resources.room(settings, folder),
        "node folder": lambda: node_resources.node_root(settings),
        "autogroups": lambda: [node_resources.autogroups()],
        "network": lambda: [node_resources.network(settings, os.environ)],
        "ports": lambda: node_resources.port_check(settings),
    }
    return run_all(checks, place, progress)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--seconds", type=float, default=70)
    parser.add_argument("--quick", action="store_true")
    asked = parser.parse_args()
    node = os.environ.get("SLURMD_NODENAME") or os.uname().nodename
    rank, tasks = int(os.environ.get("SLURM_PROCID", 0)), int(os.environ.get("SLURM_NTASKS", 1))
    # The shared folder first: all tasks have to be at it at the same time.
    found = run_all(
        {"shared folder": lambda: shared_storage.together(asked.folder, rank, tasks, asked.seconds, node)},
        node,
    )
    found += here(Settings.load(os.environ), asked.folder.parent, quick=asked.quick, place=node)
    sys.stdout.write("".join(line + "\n" for line in pieces(rank, found)))


def pieces(rank: int, found: list[CheckResult]) -> list[str]:
    """The answer of one task in lines that are short enough to stay whole."""
    text = base64.b64encode(json.dumps([finding.to_dict() for finding in found]).encode()).decode()
    parts = [text[start : start + _PIECE] for start in range(0, len(text), _PIECE)]
    return [f"{MARK}{rank}:{number}:{len(parts)}:{part}" for number, part in enumerate(parts)]


def joined(output: str) -> list[CheckResult]:
    """The inverse, over all tasks. A task whose pieces did not all come is left out."""
    tasks: dict[int, dict[int, str]] = {}
    totals: dict[int, int] = {}
    for line in output.splitlines():
        if line.startswith(MARK):
            rank, number, total, part = line[len(MARK) :].split(":", 3)
            tasks.setdefault(int(rank), {})[int(number)] = part
            totals[int(rank)] = int(total)
    whole = [parts for rank, parts in sorted(tasks.items()) if len(parts) == totals[rank]]
    texts = ("".join(parts[number] for number in sorted(parts)) for parts in whole)
    return [CheckResult(**entry) for text in texts for entry in json.loads(base64.b64decode(text))]


if __name__ == "__main__":
    main()
