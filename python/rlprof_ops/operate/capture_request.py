"""`rlprof capture` and `rlprof stacks`: ask a running job's workers for something and wait for what they
answer.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlprof_ops import backends, env_names
from rlprof_ops.backends import Where
from rlprof_ops.backends.window_support import ON_DEMAND, ONE_WINDOW
from rlprof_ops.collect import job_state
from rlprof_ops.collect.job_state import JobState
from rlprof_ops.errors import RlprofError, UsageError
from rlprof_ops.host import foreign
from rlprof_ops.host.contained_dir import ContainedDir
from rlprof_ops.job.folders import RunFolder
from rlprof_ops.request import CaptureSpec
from rlprof_ops.runtime.on_demand import watcher
from rlprof_ops.supervisor import capture_relay
from rlprof_ops.words import limit

_POLL_S = 0.25
_HEAD_POLL_S = 1.0  # where the head tells how the workers stand
_MOST_LOOKS = 40  # at reports, of which many may be on their way, a poll


@dataclass(frozen=True)
class TrainingProcess:
    """A training process that has registered and not ended."""

    worker: str
    rank: int
    node: str
    pid: int
    events: Path
    on_demand: bool
    registered_ns: int

    @property
    def name(self) -> str:
        return f"{self.worker} rank {self.rank}"


@dataclass(frozen=True)
class CaptureOutcome:
    """What became of one worker's capture: `path` of its report in the run folder, or `reason` why there
    is none.
    """

    worker: TrainingProcess
    path: Path | None
    reason: str = ""


def capture(
    run: Path,
    workers: Sequence[str],
    ranks: tuple[int, ...] | None,
    backend: str,
    steps: str | None,
    seconds: float | None,
    options: dict[str, str],
    timeout_s: float,
    progress: Callable[[int, int, str], None],
) -> list[CaptureOutcome]:
    """Open a window in each matching worker of the running job `run`, and wait until every report is in the
    run folder.

    Raises:
        UsageError: nothing matches, `steps` is not `next:N`, or the backend takes no such capture.
        RlprofError: the job has ended, or its workers do not listen.
    """
    next_steps = parse_next(steps) if steps else None
    spec = CaptureSpec(backend, tuple(workers), ranks, options=options)
    refused = backends.validate(spec, Where(driver=ON_DEMAND)).errors if backend != "auto" else ()
    if refused:
        raise UsageError("; ".join(refused))
    meant = _meant(run, workers, ranks)
    deaf = [worker.name for worker in meant if not worker.on_demand]
    if deaf:
        raise RlprofError(
            f"{', '.join(deaf)} do not listen: the job was started with RLPROF_ON_DEMAND=0; set it to 1 at"
            " sbatch"
        )
    request = watcher.CaptureRequest(_new_id(), tuple(workers), ranks, backend, options, next_steps, seconds)
    _ask(run, request)
    deadline = time.monotonic() + timeout_s + (seconds or 0)
    found: dict[TrainingProcess, CaptureOutcome] = {}
    while True:
        state = _state(run)
        waiting = [worker for worker in meant if worker not in found]
        found |= (
            _answers_of_head(run, waiting, state, request.id) if state else _answers(run, waiting, request.id)
        )
        record = foreign.read_object(run / "run.json")
        found |= _of_lost_nodes(record, [worker for worker in waiting if worker not in found])
        progress(len(found), len(meant), request.id)
        ended = _end_of(record, run)
        if len(found) == len(meant) or ended or time.monotonic() > deadline:
            break
        time.sleep(_HEAD_POLL_S if state else _POLL_S)
    why = _ended(run) or f"nothing came within {limit(timeout_s)}; it may still: see {run / 'profiles'}"
    return [found.get(worker, CaptureOutcome(worker, None, why)) for worker in meant]


def stacks(
    run: Path, workers: Sequence[str], ranks: tuple[int, ...] | None, timeout_s: float
) -> Iterator[tuple[TrainingProcess, str]]:
    """The Python stacks of each matching worker, as they come; directly when it runs on this machine."""
    meant = _meant(run, workers, ranks)
    here = {
        worker for worker in meant if worker.node == _this_node() and os.path.isdir(f"/proc/{worker.pid}")
    }
    for worker in sorted(here, key=_place):
        yield worker, capture_relay.stacks_of(worker.pid)
    waiting = {(worker.node, worker.pid): worker for worker in meant if worker not in here}
    if not waiting:
        return
    request = watcher.CaptureRequest(_new_id(), tuple(workers), ranks, watcher.STACKS, {}, 1, None)
    _ask(run, request)
    folder = run / watcher.FOLDER / f"{request.id}.{watcher.STACKS}"
    deadline = time.monotonic() + timeout_s
    while waiting and time.monotonic() < deadline and not _ended(run):
        time.sleep(_HEAD_POLL_S)
        for name in watcher.names_in(folder):
            node, _, pid = name.removesuffix(".json").rpartition("_")
            asked = waiting.get((node, int(pid))) if pid.isdigit() else None
            data = foreign.read_object(folder / name) if asked is not None else {}
            if asked is not None and data:
                del waiting[node, int(pid)]
                yield asked, foreign.text(data.get("text"))
    for worker in sorted(waiting.values(), key=_place):
        yield worker, _ended(run) or f"node {worker.node} did not answer within {limit(timeout_s)}"


def ask_dumps(run: Path) -> None:
    """Ask every process of a running job for its dump of torch's flight recorder; the sync brings them home.

    Raises RlprofError for a job that has ended.
    """
    ended = _ended(run)
    if ended:
        raise RlprofError(f"{ended}: there is nothing to dump")
    _ask(run, watcher.CaptureRequest(_new_id(), ("*",), None, watcher.DUMPS, {}, 1, None))


def parse_next(text: str) -> int:
    """`next:2` -> 2; raises `UsageError` for anything else."""
    match = re.fullmatch(r"next:([1-9][0-9]{0,5})", text.strip())
    if not match:
        raise UsageError(
            f"--steps is {text!r}: expected next:N, e.g. next:2 for the next two steps; {ONE_WINDOW}"
        )
    return int(match[1])


def _meant(run: Path, patterns: Sequence[str], ranks: tuple[int, ...] | None) -> list[TrainingProcess]:
    ended = _ended(run)
    if ended:
        raise RlprofError(f"{ended}: there is nothing to capture")
    there = registered(run)
    if not there:
        raise RlprofError(
            f"no worker of {run.name} has registered yet: workers do when they call profiler.from_env, and"
            " the log sync brings it here every RAY_LOG_SYNC_FREQUENCY seconds"
        )
    spec = CaptureSpec(workers=tuple(patterns), ranks=ranks)
    meant = sorted((worker for worker in there if spec.matches(worker.worker, worker.rank)), key=_place)
    if not meant:
        kinds: dict[str, list[int]] = {}
        for worker in there:
            kinds.setdefault(worker.worker, []).append(worker.rank)
        running = "; ".join(
            f"{kind} rank {', '.join(map(str, sorted(found)))}" for kind, found in sorted(kinds.items())
        )
        asked = f"{', '.join(patterns)}" + ("" if ranks is None else f" rank {', '.join(map(str, ranks))}")
        raise UsageError(f"no running worker matches {asked}: there are {running}")
    return meant


def _ask(run: Path, request: watcher.CaptureRequest) -> None:
    """Hand a request to the job's head; leave it in the run folder where the head cannot be reached."""
    state = _state(run)
    if state is not None and state.control:
        with contextlib.suppress(UsageError, OSError):
            if capture_relay.send(state.control, RunFolder(run).read_token(), request):
                return
    watcher.leave(run / watcher.FOLDER, request)


def _state(run: Path) -> JobState | None:
    try:
        with ContainedDir(run) as folder:
            return job_state.read(folder)
    except OSError:
        return None


def registered(run: Path) -> list[TrainingProcess]:
    """The processes that registered and have not ended; of one worker and rank the latest (a restarted
    actor). By the head's word, or by all events where there is none.
    """
    state = _state(run)
    if state is not None:
        return [
            TrainingProcess(
                each.worker, each.rank, each.node, each.pid, run, each.on_demand, each.registered_ns
            )
            for each in state.workers
            if not each.ended
        ]
    latest: dict[tuple[str, int], tuple[TrainingProcess, bool]] = {}
    for path in [*run.glob("nodes/*/events/*.jsonl"), *run.glob("events/*.jsonl")]:
        rows = foreign.read_rows(path)
        first = next((row for row in rows if row.get("event") == "registered"), None)
        if first is None:
            continue
        node = path.parents[1].name if path.parents[2].name == "nodes" else foreign.text(first.get("host"))
        rank, pid, t_ns = (foreign.whole(first.get(key)) or 0 for key in ("rank", "pid", "t_ns"))
        name = foreign.text(first.get("worker"))
        worker = TrainingProcess(name, rank, node, pid, path, first.get("on_demand") is True, t_ns)
        ended = any(row.get("event") == "ended" for row in rows)
        before = latest.get((worker.worker, worker.rank))
        if before is None or before[0].registered_ns < worker.registered_ns:
            latest[worker.worker, worker.rank] = worker, ended
    return [worker for worker, ended in latest.values() if not ended]


def _answers(
    run: Path, waiting: list[TrainingProcess], asked_by: str
) -> dict[TrainingProcess, CaptureOutcome]:
    found = ((worker, _answer(run, worker, asked_by)) for worker in waiting)
    return {worker: answer for worker, answer in found if answer is not None}


def _answers_of_head(
    run: Path, waiting: list[TrainingProcess], state: JobState, asked_by: str
) -> dict[TrainingProcess, CaptureOutcome]:
    """As the head tells. A report counts when it is in the run folder, where some of them are looked for."""
    told = {(each.worker, each.rank): each for each in state.answers if each.asked_by == asked_by}
    found: dict[TrainingProcess, CaptureOutcome] = {}
    looks = 0
    for worker in waiting:
        answer = told.get((worker.worker, worker.rank))
        if answer is None:
            continue
        if not answer.path:
            found[worker] = CaptureOutcome(worker, None, answer.reason)
        elif looks < _MOST_LOOKS:
            looks += 1
            if (run / answer.path).is_file():
                found[worker] = CaptureOutcome(worker, run / answer.path)
    return found


def _answer(run: Path, worker: TrainingProcess, asked_by: str) -> CaptureOutcome | None:
    for row in foreign.read_rows(worker.events):
        if row.get("asked_by") != asked_by:
            continue
        if row.get("event") == "failed":
            return CaptureOutcome(worker, None, foreign.text(row.get("reason")))
        path = foreign.text(row.get("path"))
        if row.get("event") == "closed" and path and (run / path).is_file():
            return CaptureOutcome(worker, run / path)
    return None


def _ended(run: Path) -> str:
    """Why the job of this run folder does not run any more; "" while it does (or nobody supervises it)."""
    return _end_of(foreign.read_object(run / "run.json"), run)


def _of_lost_nodes(
    record: dict[str, Any], waiting: Sequence[TrainingProcess]
) -> dict[TrainingProcess, CaptureOutcome]:
    """What nobody will answer any more: the head has lost the node."""
    lost = foreign.a_list(foreign.an_object(record.get("end")).get("lost_nodes"))
    return {
        worker: CaptureOutcome(worker, None, f"node {worker.node} was lost")
        for worker in waiting
        if worker.node in lost
    }


def _end_of(data: dict[str, Any], run: Path) -> str:
    end, driver = foreign.an_object(data.get("end")), foreign.an_object(data.get("driver"))
    cause = end.get("cause", "running")
    if cause == "running" and driver.get("ended_ns") is None:
        return ""
    code = driver.get("exit_code")
    return (
        f"job {data.get('job', run.name)} has ended"
        f" ({cause if cause != 'running' else 'driver_exit'}{'' if code is None else f', exit code {code}'})"
    )


def _place(worker: TrainingProcess) -> tuple[str, int]:
    return worker.worker, worker.rank


def _new_id() -> str:
    return f"{time.strftime('%Y%m%d-%H%M%S', time.gmtime())}-{secrets.token_hex(3)}"


def _this_node() -> str:
    return os.environ.get(env_names.NODE) or socket.gethostname()
