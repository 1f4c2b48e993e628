"""The ordered end on one node: close windows, wait for profilers, recover raw captures, end what is left,
write the record.

The node supervisor calls these in this order; each is bounded by its own deadline and says what it did and
how long it took.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlprof_ops.backends import report_names
from rlprof_ops.backends.nsight import nsys_cli, nsys_process
from rlprof_ops.collect import event_logs
from rlprof_ops.collect.drain.import_raw import recover_tree
from rlprof_ops.collect.drain.node_record import build_node_record
from rlprof_ops.host import processes
from rlprof_ops.host.contained_dir import ContainedDir
from rlprof_ops.host.foreign import reason_of
from rlprof_ops.job.folders import pinned_run
from rlprof_ops.words import duration, limit

Say = Callable[[str], None]
_LIST_TIMEOUT_S = 15.0
_LOOK_EVERY_S = 1.0  # for progress
_NO_PROGRESS_S = 5.0  # without any, a profiler hangs
_AGENT, _AGENT_IDLES = "--start-agent", 0.2  # of a core: one that works takes more
_LEAST_GROWTH = 64 << 10  # bytes a second, of a report that is being written
_WAITING = ("nsys-launcher", "nsys-tee", "launch", "sessions")
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_SETTLE_S = 1.0  # a raw capture that has not grown for this long, with no profiler left, is final
_LEAVES_S = 5.0  # that Python may take to end, once it is leaving, and longer while it works
_LEAVES_SHARE = 2 / 3  # of the time, at most


@dataclass(frozen=True)
class DrainOutcome:
    """What one step of the drain did: `done` names (sessions, files, processes), `failed` (name, reason)."""

    name: str
    seconds: float
    done: tuple[str, ...] = ()
    failed: tuple[tuple[str, str], ...] = ()

    def __str__(self) -> str:
        text = f"{self.name}: {duration(self.seconds * 1e9)}, {len(self.done)} done"
        return text + "".join(f"; {what}: {reason}" for what, reason in self.failed)


class ProfilerDeadline:
    """When to stop waiting for profilers: after `deadline_s`, or after `most_s` while they make progress.

    Progress is a report or raw capture below `tmp/` that grows, and processor time of this job's profilers.
    Of an open window that nobody closes nsys 2023.4 takes 2.5 % of a core and writes 8 kB a second.
    """

    def __init__(
        self, node_dir: str | os.PathLike[str], job: str, started: float, deadline_s: float, most_s: float
    ) -> None:
        self._node_dir, self._job = node_dir, job
        self._soft, self._hard = started + deadline_s, started + most_s
        self._sizes: dict[str, int] = {}
        self._ticks: dict[tuple[int, int], int] = {}
        self._looked_at, self._moved_at = 0.0, started

    def is_over(self) -> bool:
        now = time.monotonic()
        if now - self._looked_at >= _LOOK_EVERY_S:
            if self._gets_on(now - self._looked_at) or not self._looked_at:
                self._moved_at = now
            self._looked_at = now
        if now < self._soft:
            return False
        return now >= self._hard or now - self._moved_at >= _NO_PROGRESS_S

    def _gets_on(self, seconds: float) -> bool:
        """Whether something has moved since the last look, `seconds` ago."""
        sizes_before, self._sizes = self._sizes, _sizes(Path(self._node_dir) / "tmp")
        ticks_before, self._ticks = self._ticks, {}
        moved = not self._sizes.keys() <= sizes_before.keys() or any(
            size - sizes_before[path] >= _LEAST_GROWTH * seconds for path, size in self._sizes.items()
        )
        for one in processes.of_job(self._job, self._node_dir):
            if not processes.is_profiler(one) or _only_waits(one):
                continue
            key = (one.pid, one.started)
            self._ticks[key] = ticks = processes.cpu_ticks(one.pid)
            idle = _AGENT_IDLES * seconds * _TICKS_PER_S if _AGENT in one.argv[1:2] else 0.0
            moved = moved or ticks - ticks_before.get(key, 0) > idle
        return moved


def _only_waits(profiler: processes.Process) -> bool:
    """Whether it works on no report: what launches a program, passes its output on, or lists sessions."""
    return profiler.name in _WAITING or any(word in _WAITING for word in profiler.argv[1:2])


def session_prefix(job: str) -> str:
    """How the names of this job's nsys sessions begin."""
    return f"rlprof-{report_names.safe(job)}-"


def close_windows(
    node_dir: str | os.PathLike[str],
    job: str,
    *,
    deadline_s: float = 30.0,
    most_s: float = 0.0,
    gate_first_s: float = 2.0,
    say: Say = print,
) -> DrainOutcome:
    """`nsys stop` on this job's sessions that still collect, after `gate_first_s` for the workers' own step
    gates.

    Sessions of other jobs are left alone. The report of a window closed here keeps the name its start gave
    it.
    """
    started = time.monotonic()
    done: list[str] = []
    failed: list[tuple[str, str]] = []
    if nsys_cli.find() is None:
        return _phase("close_windows", started, done, failed, say)
    while (left := collecting(node_dir, job)) and time.monotonic() - started < gate_first_s:
        time.sleep(0.2)
    running = {name: nsys_process.start(nsys_cli.stop_argv(name), tmpdir) for name, tmpdir in left.items()}
    deadline = ProfilerDeadline(node_dir, job, started, deadline_s, most_s)
    while any(process.poll() is None for process in running.values()) and not deadline.is_over():
        time.sleep(0.05)
    for name, process in running.items():
        if process.poll() is None:
            nsys_process.end_group(process)
            failed.append((name, f"nsys stop did not return within {limit(time.monotonic() - started)}"))
            continue
        output, _ = process.communicate()
        if process.returncode == 0:
            done.append(name)
        else:
            failed.append(
                (name, f"nsys stop ended with exit code {process.returncode}: {output.strip()[-200:]}")
            )
    return _phase("close_windows", started, done, failed, say)


def collecting(node_dir: str | os.PathLike[str], job: str) -> dict[str, str]:
    """This job's nsys sessions that have an open window, each with the TMPDIR it was found by.

    nsys keeps its sessions below TMPDIR (seen with 2023.4), and profiled workers have the node folder's.
    """
    nsys = nsys_cli.find()
    found: dict[str, str] = {}
    if nsys is None:
        return found
    for tmpdir in dict.fromkeys((os.path.join(node_dir, "tmp"), tempfile.gettempdir())):
        try:
            process = nsys_process.start([nsys, "sessions", "list"], tmpdir)
        except OSError:
            continue
        try:
            listing, _ = process.communicate(timeout=_LIST_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            nsys_process.end_group(process)  # which waits for no process that a dead storage holds
            continue
        for name in sessions_of(listing, job):
            found.setdefault(name, tmpdir)
    return found


def sessions_of(listing: str, job: str) -> list[str]:
    """Collecting sessions of `job` in the text of `nsys sessions list`."""
    states = nsys_cli.session_states(listing)
    return [
        name
        for name, state in states.items()
        if state in nsys_cli.COLLECTING and name.startswith(session_prefix(job))
    ]


def end_wrapped(
    node_dir: str | os.PathLike[str],
    job: str,
    *,
    deadline_s: float = 60.0,
    most_s: float = 0.0,
    say: Say = print,
) -> DrainOutcome:
    """End the workers under `nsys profile` (a trainer's own nsight options, or a capture range) and wait for
    their reports.

    Such a report is written when its worker ends. Call it while Ray still runs: `ray stop` and the raylet's
    end kill an nsys that writes, and leave a report that nobody can read (seen with Ray 2.60 and nsys
    2023.4).

    Python that ends has given up its handlers long before it is gone, and nsys takes the latest ranges only
    then: a worker that catches neither SIGTERM nor SIGINT is leaving, and is first let alone. On a busy
    machine that takes it seconds of its own work (Ray's workers have niceness 15).
    """
    started = time.monotonic()
    failed: list[tuple[str, str]] = []
    asked: set[tuple[int, int]] = set()
    ended: list[str] = []
    leaving = _Leaving(started + min(_LEAVES_S, deadline_s / 3), started + deadline_s * _LEAVES_SHARE)
    deadline = ProfilerDeadline(node_dir, job, started, deadline_s, most_s)
    while True:
        everyone = processes.of_job(job, node_dir)
        wrappers = {process.pid for process in everyone if _writes_at_exit(process)}
        if not wrappers:
            break
        if deadline.is_over():
            waited = limit(time.monotonic() - started)
            failed = [
                (f"{process.name} ({process.pid})", f"still writing after {waited}")
                for process in everyone
                if process.pid in wrappers
            ]
            break
        profilers = {process.pid for process in everyone if processes.is_profiler(process)}
        for process in everyone:
            top = (
                process.pid not in profilers
                and processes.parent(process.pid) in profilers
                and processes.descends(process.pid, wrappers)
            )
            new = top and (process.pid, process.started) not in asked
            if new and not leaving.lets_alone(process.pid):
                asked.add((process.pid, process.started))
                ended.append(f"{process.name} ({process.pid})")
                processes.terminate(process)
        time.sleep(0.1)
    return _phase("end_wrapped", started, ended, failed, say)


class _Leaving:
    """Who is on its way out: Python that has given up its handlers, until `soft` or, while it works,
    `hard`.
    """

    def __init__(self, soft: float, hard: float) -> None:
        self._soft, self._hard = soft, hard
        # Of each process: its ticks, and when they were last more than before.
        self._worked: dict[int, tuple[int, float]] = {}

    def lets_alone(self, pid: int) -> bool:
        now = time.monotonic()
        ticks, before = processes.cpu_ticks(pid), self._worked.get(pid, (0, now))
        if ticks > before[0]:
            self._worked[pid] = (ticks, now)
        if processes.catches(pid, signal.SIGTERM, signal.SIGINT):
            return False
        return now < self._soft or (now < self._hard and now - self._worked.get(pid, before)[1] < _SETTLE_S)


def _writes_at_exit(process: processes.Process) -> bool:
    program = process.argv[0].rsplit("/", 1)[-1] if process.argv else ""
    return program.startswith("QdstrmImporter") or (program == "nsys" and "profile" in process.argv[1:2])


def wait_profilers(
    node_dir: str | os.PathLike[str],
    job: str,
    *,
    deadline_s: float = 60.0,
    most_s: float = 0.0,
    say: Say = print,
) -> DrainOutcome:
    """Wait until no profiler of this job writes: no importer runs and nothing below `tmp/` has grown for a
    second.

    `nsys` itself lives as long as the worker it wraps, so a running nsys is waited for only while files grow.
    """
    started = time.monotonic()
    tmp = Path(node_dir) / "tmp"
    seen, still_since = _sizes(tmp), time.monotonic()
    failed: list[tuple[str, str]] = []
    deadline = ProfilerDeadline(node_dir, job, started, deadline_s, most_s)
    while True:
        importing = [process for process in processes.of_job(job, node_dir) if _imports(process)]
        now = _sizes(tmp)
        if now != seen or importing:
            seen, still_since = now, time.monotonic()
        if (not now and not importing) or time.monotonic() - still_since >= _SETTLE_S:
            break
        if deadline.is_over():
            waited = limit(time.monotonic() - started)
            failed = [
                (f"{process.name} ({process.pid})", f"still writing after {waited}") for process in importing
            ]
            failed = failed or [("tmp", f"files still grow after {waited}")]
            break
        time.sleep(0.1)
    return _phase("wait_profilers", started, [], failed, say)


def _imports(process: processes.Process) -> bool:
    program = process.argv[0].rsplit("/", 1)[-1] if process.argv else ""
    return program.startswith("QdstrmImporter") or (program == "nsys" and "stop" in process.argv[1:3])


def _sizes(folder: Path) -> dict[str, int]:
    sizes: dict[str, int] = {}
    try:
        with ContainedDir(folder) as tree:
            for relative, found in tree.files():
                if relative.endswith(report_names.SUFFIXES) or "nsys-report" in relative:
                    sizes[relative] = found.st_size
    except OSError:
        pass
    return sizes


def recover(
    node_dir: str | os.PathLike[str],
    *,
    deadline_s: float = 60.0,
    most_s: float = 0.0,
    say: Say = print,
) -> DrainOutcome:
    """Turn raw captures below `tmp/` into reports, and move reports that nsys wrote there, to the profiles
    tree.

    Names come from the open windows in this node's events when exactly one fits, else the file keeps its own
    name under `profiles/nsight/unknown/`. Raw captures below `inplace/` become reports there. `done` are
    paths relative to the node folder, those of `inplace/` as they will be in the run folder. What does not
    import stays where it is.
    """
    started = time.monotonic()
    done, failed = recover_tree(
        Path(node_dir),
        "tmp",
        until=started + deadline_s,
        hard=started + most_s,
        in_place="inplace",
        unclosed=event_logs.unclosed(event_logs.read_node(Path(node_dir) / "events")),
    )
    return _phase("recover", started, done, failed, say)


def reap(
    job: str,
    node_dir: str | os.PathLike[str],
    *,
    grace_s: float = 5.0,
    exclude: Iterable[int] = (),
    say: Say = print,
) -> DrainOutcome:
    """End what is left of exactly this job on this node: SIGTERM, `grace_s`, SIGKILL. Never this process
    or its parents.
    """
    started = time.monotonic()
    found = processes.of_job(job, node_dir, exclude=frozenset(exclude))
    left = processes.end(found, grace_s=grace_s)
    # A process that forks while it is ended leaves a child that the first look did not see.
    late = processes.of_job(job, node_dir, exclude=frozenset(exclude))
    left = processes.end(late, grace_s=0.5) if late else left
    failed = [(f"{process.name} ({process.pid})", "did not end after SIGKILL") for process in left]
    return _phase(
        "reap", started, [f"{process.name} ({process.pid})" for process in found + late], failed, say
    )


def write_node_record(
    node_dir: str | os.PathLike[str],
    run_dir: str | os.PathLike[str],
    node: str,
    facts: Mapping[str, Any],
    *,
    recovered: Iterable[str] = (),
    failed: Iterable[tuple[str, str]] = (),
) -> dict[str, Any]:
    """Write `nodes/<node>.json` of docs/contracts.md and return it.

    `facts`: what the supervisor knows (role, job, pid, times, plugin_loaded, nsys, clean, clock …). Files and
    their digests come from the sync's journal; what it could not copy is in `failed`. The
    node folder's `keep/` has it first, from where salvage.py takes it when the run folder fails, which is
    raised, or hangs.
    """
    record = build_node_record(Path(node_dir), node, facts, recovered=recovered, failed=failed)
    data = (json.dumps(record, indent=1) + "\n").encode()
    with ContainedDir(node_dir) as home:
        home.write_atomic(f"keep/{node}.json", data)
        with pinned_run(run_dir, node_dir).open() as target:
            target.write_atomic(f"nodes/{node}.json", data)
        home.unlink(f"keep/{node}.json")
    return record


def clear(node_dir: str | os.PathLike[str], *, spare: Iterable[str] = (), say: Say = print) -> DrainOutcome:
    """Remove the node folder, but for the folders `spare`, and for `keep/` when it holds anything."""
    started = time.monotonic()
    root = Path(node_dir)
    failed: list[tuple[str, str]] = []
    keep = root / "keep"
    spared = {
        *spare,
        *(["keep"] if keep.is_dir() and any(path.is_file() for path in keep.rglob("*")) else []),
    }

    def note(function: object, path: str, error: Any) -> None:
        failed.append((path, reason_of(error[1])))

    if not spared:
        shutil.rmtree(root, onerror=note)  # does not follow links
    for entry in list(root.iterdir()) if spared else ():
        if entry.name in spared:
            continue
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry, onerror=note)
        else:
            entry.unlink(missing_ok=True)
    return _phase("clear", started, [], failed, say)


def _phase(
    name: str, started: float, done: Iterable[str], failed: Iterable[tuple[str, str]], say: Say
) -> DrainOutcome:
    phase = DrainOutcome(name, time.monotonic() - started, tuple(done), tuple(failed))
    say(f"drain: {phase}")
    return phase
