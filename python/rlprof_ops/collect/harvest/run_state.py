"""What a run folder tells about its job: run.json, node records, events. Everything in it is read with
suspicion.
"""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from rlprof_ops.backends import report_names
from rlprof_ops.collect import event_logs, job_state
from rlprof_ops.collect.event_logs import Led, ProcessLog
from rlprof_ops.collect.sync.routes import TORCH_FR_MIB, is_dump
from rlprof_ops.errors import RlprofError
from rlprof_ops.host import foreign, processes
from rlprof_ops.host.contained_dir import ContainedDir
from rlprof_ops.job import attempt
from rlprof_ops.job.end_cause import EndCause
from rlprof_ops.request import ProfileRequest, request_from_json
from rlprof_ops.runtime.process.worker_identity import DRIVERS
from rlprof_ops.slurm.job_over import REQUEUED, ended_as
from rlprof_ops.words import counted, size


@dataclass(frozen=True, slots=True)
class SentFile:
    """One line of a node record about a finished file; `place` is where it went in the run folder."""

    place: str
    size_bytes: int
    sha256: str | None
    state: str


@dataclass(frozen=True)
class NodeRecord:
    """What one node said at its end. `files` is keyed by path in the node folder."""

    node: str
    plugin_loaded: bool | None = None
    clean: bool = False
    files: dict[str, SentFile] = field(default_factory=dict)
    recovered: frozenset[str] = frozenset()
    failed: dict[str, str] = field(default_factory=dict)
    gone: str = ""  # what became of its folder, written by others: such a node is lost all the same


@dataclass(frozen=True)
class DriverRecord:
    """How the driver ended; all None while it runs or when it never started."""

    exit_code: int | None = None
    signal: int | None = None
    started_ns: int | None = None
    ended_ns: int | None = None
    name: str = ""  # of the program that `rlprof wrap` ran, where no job was around it

    def __str__(self) -> str:
        return self.name or "the driver"


@dataclass(frozen=True)
class Observed:
    """The job as seen from its run folder. `world`: worker name -> number of ranks. `waiting`: resources
    that the driver waits for and no node has. `never_begun`: selected workers that were created and never
    told that they began, with what nsys last did. `gone`: lost nodes whose folder had vanished, and how.
    `not_seen`: what adapters could not follow; `adapted`: the trainers that they know.
    """

    job: str
    request: ProfileRequest
    nodes: tuple[str, ...]
    driver: DriverRecord
    cause: str
    detail: str
    world: dict[str, int]
    logs: tuple[ProcessLog, ...]
    records: dict[str, NodeRecord]
    notes: tuple[str, ...] = ()
    waiting: str = ""
    never_begun: dict[tuple[str, int], str] = field(default_factory=dict)
    gone: dict[str, str] = field(default_factory=dict)
    not_seen: tuple[str, ...] = ()
    adapted: tuple[str, ...] = ()

    @property
    def led(self) -> Led | None:
        """Who told the job's steps: a process before the driver's output, then whoever told the most."""
        found = [log.led for log in self.logs if log.led is not None]
        return max(found, key=lambda led: (not led.log, len(led.steps)), default=None)

    @property
    def running(self) -> bool:
        return self.cause == EndCause.RUNNING or (
            self.cause == "" and self.driver.ended_ns is None and self.driver.started_ns is not None
        )

    @property
    def lost_nodes(self) -> frozenset[str]:
        """Nodes of the job that left no record although the job is over."""
        return frozenset() if self.running else frozenset(self.nodes) - frozenset(self.records)

    def logs_of(self, worker: str, rank: int) -> tuple[ProcessLog, ...]:
        """The processes that were this rank, oldest first (an actor that was restarted has several)."""
        return self._by_rank.get((worker, rank), ())

    @property
    def _by_rank(self) -> dict[tuple[str, int], tuple[ProcessLog, ...]]:
        cached: dict[tuple[str, int], tuple[ProcessLog, ...]] | None = self.__dict__.get("_index")
        if cached is None:
            index: dict[tuple[str, int], list[ProcessLog]] = {}
            for log in sorted(self.logs, key=lambda log: log.registered_ns):
                index.setdefault((log.worker, log.rank), []).append(log)
            cached = {key: tuple(logs) for key, logs in index.items()}
            object.__setattr__(self, "_index", cached)
        return cached


def observe(run: ContainedDir, *, of_head: bool = False) -> Observed:
    """Read a run folder. Raises `RlprofError` when it has no readable run.json; damaged node records
    become notes. `of_head` reads run.json alone.
    """
    try:
        raw = foreign.bounded(os.fdopen(run.open_read("run.json"), "rb"))
    except FileNotFoundError:
        raise RlprofError(
            f"{run.root} has no run.json: it is not the run folder of a job, or the job never started"
        ) from None
    except (OSError, ValueError) as error:
        raise RlprofError(f"{run.root}/run.json cannot be read: {foreign.reason_of(error)}") from error
    data = _object(raw)
    if data is None:
        raise RlprofError(f"{run.root}/run.json is not a JSON object")
    notes: list[str] = []
    records: dict[str, NodeRecord] = {}
    logs: list[ProcessLog] = []
    told = event_logs.Notes()
    gone: dict[str, str] = {}
    for name, is_folder in () if of_head else _entries(run, "nodes"):
        if is_folder:
            logs += event_logs.read_beneath(run, f"nodes/{name}/events", name)
            told.read(run, f"nodes/{name}/events")
        elif name.endswith(".json"):
            record = _record(run, name)
            if record is None:
                notes.append(f"nodes/{name!r} is damaged and was not read")
            elif record.gone:
                gone[record.node] = record.gone
            else:
                records[record.node] = record
    notes += [f"not seen of the trainer: {text}" for text in told.not_seen]
    notes += told.changed
    notes += [note for note in foreign.a_list(data.get("request_notes")) if isinstance(note, str)]
    notes += _takeovers(data)
    notes += _dumps_left(records)
    logs = logs if of_head else _with_steps(run, logs)
    request = _request(data, notes)
    driver, end = foreign.an_object(data.get("driver")), foreign.an_object(data.get("end"))
    never_begun = _never_begun(told, logs, bool(driver.get("name")))
    observed = Observed(
        job=foreign.text(data.get("job")),
        request=request,
        nodes=tuple(node for node in foreign.a_list(data.get("nodes")) if isinstance(node, str)),
        driver=DriverRecord(
            foreign.whole(driver.get("exit_code")),
            foreign.whole(driver.get("signal")),
            foreign.whole(driver.get("started_ns")),
            foreign.whole(driver.get("ended_ns")),
            foreign.in_one_line(foreign.text(driver.get("name"))),
        ),
        cause=foreign.text(end.get("cause")),
        detail=foreign.in_one_line(foreign.text(end.get("detail"))),
        world=world_of(foreign.an_object(data.get("world")), logs, never_begun),
        logs=tuple(logs),
        records=records,
        notes=tuple(notes),
        waiting=foreign.text(data.get("waiting")),
        never_begun=never_begun,
        gone=gone,
        not_seen=tuple(told.not_seen),
        adapted=tuple(told.adapted),
    )
    if of_head or not observed.running:
        return observed
    return _without_a_head(observed, foreign.text(data.get("head")), run)


def _takeovers(data: dict[str, Any]) -> list[str]:
    """What is said of supervisors that were killed while the job ran."""
    found = [each for each in foreign.a_list(data.get("takeovers")) if isinstance(each, dict)]
    return [
        f"node {foreign.text(each.get('node'))}: its supervisor {foreign.text(each.get('how'))} while the job"
        " ran, and another one took over"
        for each in found
    ]


def _dumps_left(records: Mapping[str, NodeRecord]) -> list[str]:
    """What is said of nodes whose dumps of torch's flight recorder did not all come home."""
    found = []
    for node, record in sorted(records.items()):
        left = [file for path, file in record.files.items() if file.state == "left" and is_dump(path)]
        if left:
            found.append(
                f"node {node}: {counted(len(left), 'dump')} of PyTorch's flight recorder"
                f" ({size(sum(file.size_bytes for file in left))}) stayed behind: a job brings"
                f" {TORCH_FR_MIB} MiB of them home"
            )
    return found


def _with_steps(run: ContainedDir, logs: list[ProcessLog]) -> list[ProcessLog]:
    """A node that is lost has not sent the last step of its processes; the head has noted it meanwhile."""
    if all(log.last_step for log in logs):
        return logs
    state = job_state.read(run)
    told = {each[:4]: each[4] for each in state.steps} if state is not None else {}
    return [
        log if log.last_step else replace(log, last_step=told.get((log.node, log.worker, log.rank, log.pid)))
        for log in logs
    ]


def _without_a_head(observed: Observed, head: str, run: ContainedDir) -> Observed:
    """The head writes the end of a job into run.json. When it could not, Slurm, the other nodes' records, the
    folder of a later attempt or this machine tell that it is over.
    """
    state = ended_as(observed.job)
    if state is None and _has_later_attempt(Path(run.root)):
        state = REQUEUED
    killed = state is None and killed_here(run, observed.job, head)
    others = set(observed.nodes) - {head}
    alone = head not in observed.records and others and others <= set(observed.records)
    told = job_state.read(run) if state == "unknown" else None  # fresh: this Slurm is another cluster's
    if state == "" or (told and job_state.is_fresh(told)) or (state is None and not alone and not killed):
        return observed
    said = (
        "a later attempt of the job has begun"
        if state == REQUEUED
        else f"Slurm says {state}"
        if state and state != "unknown"
        else "Slurm does not know the job any more"
        if state
        else "none of its processes is left there"
        if killed
        else "the other nodes have ended"
    )
    detail = f"its head node {head} ended without a word; {said}"
    return replace(
        observed,
        cause=EndCause.NODE_LOST,
        detail=detail,
        notes=(*observed.notes, f"run.json was never finished: {detail}"),
    )


def killed_here(run: ContainedDir, job: str, head: str) -> bool:
    """Whether the processes of a run without Slurm, which began on this machine, were all killed before its
    end was written down: its head is silent, and none of them is here.
    """
    if not job.startswith(attempt.LOCAL) or head != socket.gethostname():
        return False
    state = job_state.read(run)
    if state is None or job_state.is_fresh(state) or os.stat(run.root).st_uid != os.getuid():
        return False
    return job not in processes.jobs_here()


def _has_later_attempt(folder: Path) -> bool:
    """Whether a run folder of the same job and user, of a later attempt, is beside."""
    name = attempt.of_folder(folder)
    latest = attempt.newest(folder.parent, attempt.job_of(name)) if name else None
    try:
        return (
            latest is not None and latest.name != folder.name and latest.stat().st_uid == folder.stat().st_uid
        )
    except OSError:
        return False


def _never_begun(told: event_logs.Notes, logs: list[ProcessLog], wrapped: bool) -> dict[tuple[str, int], str]:
    """Workers that were selected when they were created and were never heard of."""
    heard = told.begun | {(log.worker, log.rank) for log in logs}
    if wrapped:  # such a program goes by one of these names before its trainer's adapter knows a better one
        led = {rank for worker, rank in heard if worker in DRIVERS}
        heard |= {(name, rank) for name in DRIVERS for rank in led}
    found = {}
    for worker, rank in sorted(told.selected - heard):
        end = f"-{report_names.safe_worker(worker)}-r{rank}-"
        said = [reason for session, reason in told.nsys_failed.items() if session.endswith(end)]
        found[worker, rank] = said[-1] if said else ""
    return found


def world_of(
    told: dict[str, Any], logs: list[ProcessLog], more: Iterable[tuple[str, int]] = ()
) -> dict[str, int]:
    """Ranks by worker: what was told, what has registered, and `more` that were selected."""
    world = {
        name: ranks
        for name, count in told.items()
        if (ranks := foreign.whole(count)) is not None and 0 <= ranks < 1_000_000
    }
    for log in logs:
        seen = max(log.rank + 1, log.world_size or 0)
        if seen < 1_000_000:
            world[log.worker] = max(world.get(log.worker, 0), seen)
    for worker, rank in more:
        if 0 <= rank < 1_000_000:
            world[worker] = max(world.get(worker, 0), rank + 1)
    return dict(sorted(world.items()))


def _request(data: dict[str, Any], notes: list[str]) -> ProfileRequest:
    asked = data.get("request")
    if not asked:
        return ProfileRequest()
    try:
        return request_from_json(json.dumps(asked), origin="run.json")
    except RlprofError as error:
        notes.append(f"the request in run.json cannot be read, so nothing counts as planned: {error}")
        return ProfileRequest()


def _record(run: ContainedDir, name: str) -> NodeRecord | None:
    try:
        data = _object(foreign.bounded(os.fdopen(run.open_read(f"nodes/{name}"), "rb")))
    except (OSError, ValueError):
        return None
    if data is None:
        return None
    files: dict[str, SentFile] = {}
    for row in foreign.a_list(data.get("files")):
        path = foreign.text(foreign.an_object(row).get("path"))
        if path:
            files[path] = SentFile(
                foreign.text(row.get("target")) or path,
                foreign.whole(row.get("size_bytes")) or 0,
                foreign.text(row.get("sha256")) or None,
                foreign.text(row.get("state")),
            )
    loaded = data.get("plugin_loaded")
    return NodeRecord(
        node=name.removesuffix(".json"),
        plugin_loaded=loaded if isinstance(loaded, bool) else None,
        clean=data.get("clean") is True,
        files=files,
        recovered=frozenset(path for path in foreign.a_list(data.get("recovered")) if isinstance(path, str)),
        failed={
            foreign.text(row.get("path")): foreign.text(row.get("reason"))
            for row in map(foreign.an_object, foreign.a_list(data.get("failed")))
        },
        gone=foreign.text(data.get("gone")),
    )


def _entries(run: ContainedDir, folder: str) -> Iterator[tuple[str, bool]]:
    try:
        with run.folder((folder,)) as fd, os.scandir(fd) as entries:
            found = sorted(
                (entry.name, entry.is_dir(follow_symlinks=False))
                for entry in entries
                if not entry.is_symlink()
            )
    except OSError:
        return
    yield from found


def _object(raw: bytes) -> dict[str, Any] | None:
    try:
        data = foreign.parse(raw)
    except ValueError:
        return None
    return data if isinstance(data, dict) else None
