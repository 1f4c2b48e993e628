"""`python -m rlprof_ops.doctor.node_checks`: all checks of one node, as one line of JSON."""

from __future__ import annotations

import argparse
import base64
import functools
import json
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict
from pathlib import Path

from rlprof_ops import backends
from rlprof_ops.backends.contract import load
from rlprof_ops.check_result import CheckResult, run_all
from rlprof_ops.doctor import node_resources, profilers, shared_storage, software
from rlprof_ops.host import command
from rlprof_ops.job.knobs import Settings

MARK, BEGUN = "rlprof-doctor:", "rlprof-doctor-begun:"
_LEAST_S = 70.0  # that others are waited for: an NFS client may remember for a minute what was not there
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
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("--until", type=float, required=True)
    parser.add_argument("--quick", action="store_true")
    asked = parser.parse_args()
    node = os.environ.get("SLURMD_NODENAME") or os.uname().nodename
    rank, tasks = int(os.environ.get("SLURM_PROCID", 0)), int(os.environ.get("SLURM_NTASKS", 1))
    seconds = patience_s(asked.seconds, asked.until - time.time())
    unseen: shared_storage.Unseen | None = None

    def begun(late: bool) -> None:
        start = shared_storage.Start(node, os.environ.get("SLURM_STEP_NODELIST", ""), late)
        sys.stdout.write(f"{BEGUN}{rank}:{json.dumps(asdict(start))}\n")
        sys.stdout.flush()  # also of a task that is ended before it has answered

    def meet() -> Iterator[CheckResult]:
        nonlocal unseen
        unseen = yield from shared_storage.together(asked.folder, rank, tasks, seconds, node, begun)

    # The shared folder first: all tasks have to be at it at the same time.
    found = run_all({"shared folder": meet}, node)
    found += here(Settings.load(os.environ), asked.folder.parent, quick=asked.quick, place=node)
    sys.stdout.write("".join(line + "\n" for line in pieces(rank, found, unseen)))


def patience_s(most_s: float, left_s: float) -> float:
    """How long others are waited for: less where the job was queued, by clocks that may differ."""
    return min(most_s, max(_LEAST_S, left_s))


def pieces(rank: int, found: list[CheckResult], unseen: shared_storage.Unseen | None = None) -> list[str]:
    """The answer of one task in lines that are short enough to stay whole."""
    answer = [[finding.to_dict() for finding in found], unseen and asdict(unseen)]
    text = base64.b64encode(json.dumps(answer).encode()).decode()
    parts = [text[start : start + _PIECE] for start in range(0, len(text), _PIECE)]
    return [f"{MARK}{rank}:{number}:{len(parts)}:{part}" for number, part in enumerate(parts)]


def joined(output: str) -> list[CheckResult]:
    """The inverse, over all tasks, with what it means that some did not see others. A task whose pieces did
    not all come is left out.
    """
    tasks: dict[int, dict[int, str]] = {}
    totals: dict[int, int] = {}
    starts: dict[int, shared_storage.Start] = {}
    for line in output.splitlines():
        if line.startswith(MARK):
            rank, number, total, part = line[len(MARK) :].split(":", 3)
            tasks.setdefault(int(rank), {})[int(number)] = part
            totals[int(rank)] = int(total)
        elif line.startswith(BEGUN):
            rank, _, start = line[len(BEGUN) :].partition(":")
            starts[int(rank)] = shared_storage.Start(**json.loads(start))
    whole = [parts for rank, parts in sorted(tasks.items()) if len(parts) == totals[rank]]
    found: list[CheckResult] = []
    for parts in whole:
        findings, unseen = json.loads(base64.b64decode("".join(parts[number] for number in sorted(parts))))
        if unseen:
            found.append(shared_storage.judged(shared_storage.Unseen(**unseen), starts, hostnames))
        found += [CheckResult(**entry) for entry in findings]
    return found


def hostnames(nodes: str) -> list[str]:
    """The nodes of a list as Slurm writes it; none where it cannot be asked."""
    return command.output_of("scontrol", "show", "hostnames", nodes).split()


if __name__ == "__main__":
    main()
