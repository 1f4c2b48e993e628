"""Finds and ends the processes of exactly one job on this node: by their environment, never by a name."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from rlprof_ops import env_names

_PROC = Path("/proc")
# Where in the kernel a process waits -> for whose answer.
_STORAGE_WAITS = {
    "request_wait_answer": "a FUSE file system",
    "rpc_wait_bit": "an NFS server",
    "nfs_wait_bit": "an NFS server",
    "nfs4_": "an NFS server",
    "ptlrpc_": "a Lustre server",
    "ldlm_": "a Lustre server",
    "cl_sync_io_wait": "a Lustre server",
}
_JOB, _NODE_DIR = f"{env_names.JOB}=".encode(), f"{env_names.NODE_DIR}=".encode()


@dataclass(frozen=True)
class Process:
    """A running process; `started` is its start time in clock ticks since boot, so that a reused pid is
    noticed.
    """

    pid: int
    started: int
    name: str
    argv: tuple[str, ...]

    def alive(self) -> bool:
        stat = _stat(self.pid)
        return stat is not None and stat[1] == self.started and stat[2] not in "ZX"


def of_job(
    job: str, node_dir: str | os.PathLike[str], *, exclude: frozenset[int] = frozenset()
) -> list[Process]:
    """This user's processes whose start environment has RLPROF_JOB=`job` and RLPROF_NODE_DIR=`node_dir`.

    Ray's workers and agents write their title over some or all of their environment (setproctitle): those are
    known by what is left of it, or by a file of the job's private folder that they have open for writing.
    Never the caller, its parents or `exclude`.
    """
    wanted = {_JOB + os.fsencode(job), _NODE_DIR + os.fsencode(node_dir)}
    below = os.path.realpath(node_dir) + "/"
    spare = exclude | _ancestors()
    return [
        process for process in _mine() if process.pid not in spare and _is_ours(process.pid, wanted, below)
    ]


def started_with(entry: str) -> list[Process]:
    """This user's processes whose start environment has `entry`, `TMPDIR=/tmp/x`; never the caller nor its
    parents.
    """
    spare, wanted = _ancestors(), os.fsencode(entry)
    return [
        process for process in _mine() if process.pid not in spare and wanted in _environment(process.pid)
    ]


def jobs_here() -> set[str]:
    """The jobs of which a process of this user runs on this machine, by its start environment; that of the
    caller and its parents does not count.
    """
    spare = _ancestors()
    told = (entry for each in _mine() if each.pid not in spare for entry in _environment(each.pid))
    return {os.fsdecode(entry.removeprefix(_JOB)) for entry in told if entry.startswith(_JOB)}


def _is_ours(pid: int, wanted: set[bytes], below: str) -> bool:
    told = {entry for entry in _environment(pid) if entry.startswith((_JOB, _NODE_DIR))}
    return told <= wanted and (
        any(entry.startswith(_NODE_DIR) for entry in told) or _writes_below(pid, below)
    )


def _writes_below(pid: int, folder: str) -> bool:
    return any(path.startswith(folder) and _opened_for_writing(pid, fd) for fd, path in open_files(pid))


def is_profiler(process: Process) -> bool:
    """Whether it belongs to nsys: its command line, agents, launchers and the report importer."""
    program = process.argv[0].rsplit("/", 1)[-1] if process.argv else process.name
    return program.startswith(("nsys", "QdstrmImporter")) or process.name.startswith(
        ("nsys", "QdstrmImporter")
    )


def importing_ticks() -> int:
    """Processor time so far of this user's importers of reports, in clock ticks."""
    return sum(cpu_ticks(process.pid) for process in _mine() if process.name.startswith("QdstrmImporter"))


def cpu_ticks(pid: int) -> int:
    """Processor time of a process so far, in clock ticks; 0 when it is gone."""
    try:
        fields = (_PROC / str(pid) / "stat").read_bytes().rsplit(b")", 1)[-1].split()
        return int(fields[11]) + int(fields[12])
    except (OSError, IndexError, ValueError):
        return 0


def with_descendants(pid: int, of_all_threads: bool = False) -> list[int]:
    """A process and what its main thread has started, or any of its threads, and so on."""
    found = [pid]
    for each in found:
        for path in (_PROC / str(each) / "task").glob(f"{'*' if of_all_threads else each}/children"):
            with contextlib.suppress(OSError):
                found += map(int, path.read_bytes().split())
    return found


def awaited_storage(pid: int) -> str:
    """The kind of file system for whose answer the main thread of a process waits in the kernel; empty for
    one that waits for no such thing, and where the kernel does not say.
    """
    function = waits_in(pid)
    return next((name for prefix, name in _STORAGE_WAITS.items() if function.startswith(prefix)), "")


def waits_in(pid: int) -> str:
    """The kernel's function in which the main thread of a process waits; empty where that is not told."""
    with contextlib.suppress(OSError):
        return (_PROC / str(pid) / "wchan").read_text()
    return ""


def rays_task(pid: int) -> str:
    """What a worker of Ray's runs, by its process's title: `Actor.method`, or `Actor` between two calls;
    empty for others.
    """
    with contextlib.suppress(OSError):
        title = (_PROC / str(pid) / "cmdline").read_bytes()[:200].decode(errors="replace")
        name = title.partition("\0")[0].strip()
        return name.removeprefix("ray::") if name.startswith("ray::") and name != "ray::IDLE" else ""
    return ""


def moved_bytes(pid: int) -> int:
    """What a process has read and written so far, in pipes and files; 0 where that is not told."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        words = (_PROC / str(pid) / "io").read_bytes().split()
        return int(words[1]) + int(words[3])
    return 0


def state_of(pid: int) -> str:
    """The letter of a process's state; empty when it is gone."""
    stat = _stat(pid)
    return stat[2] if stat else ""


def catches(pid: int, *numbers: signal.Signals) -> bool:
    """Whether a process has a handler for one of these signals; not where it is gone."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        _, _, told = (_PROC / str(pid) / "status").read_text().partition("\nSigCgt:")
        caught = int(told.split(None, 1)[0], 16)
        return any(caught >> (number - 1) & 1 for number in numbers)
    return False


def control_groups(pid: int, proc: Path = _PROC) -> list[tuple[set[str], str]]:
    """Controllers and path of each control group of a process, last that of version 2, which names no
    controllers (cgroups(7)). Empty where the process is gone.
    """
    try:
        lines = (proc / str(pid) / "cgroup").read_text().splitlines()
    except OSError:
        return []
    found = [line.split(":", 2)[1:] for line in sorted(lines, reverse=True)]
    return [(set(controllers.split(",")) - {""}, path) for controllers, path in found]


def start_time(pid: int) -> int | None:
    """When a process began, in clock ticks since boot; None when it is gone."""
    stat = _stat(pid)
    return stat[1] if stat else None


def parent(pid: int) -> int | None:
    """The parent's pid; None when the process is gone."""
    stat = _stat(pid)
    return stat[3] if stat else None


def descends(pid: int, ancestors: set[int]) -> bool:
    """Whether one of `ancestors` is above the process."""
    above = parent(pid)
    while above is not None and above > 1:
        if above in ancestors:
            return True
        above = parent(above)
    return False


def terminate(process: Process) -> None:
    """SIGTERM to one process, never to a stranger with its pid."""
    _signal([process], signal.SIGTERM)


def writers(paths: frozenset[str]) -> set[str]:
    """Those of `paths` (absolute, real) that a process of this user has open for writing."""
    return {
        path
        for process in (_mine() if paths else ())
        for fd, path in open_files(process.pid)
        if path in paths and _opened_for_writing(process.pid, fd)
    }


def end(
    processes: list[Process], *, grace_s: float, clock: Callable[[], float] = time.monotonic
) -> list[Process]:
    """SIGTERM, wait up to `grace_s`, SIGKILL, wait up to 2 s. Returns those still there (for instance in a
    dead file system).
    """
    _signal(processes, signal.SIGTERM)
    left = _wait(processes, clock() + grace_s, clock)
    if left:
        _signal(left, signal.SIGKILL)
        left = _wait(left, clock() + 2.0, clock)
    return left


def _signal(processes: list[Process], number: signal.Signals) -> None:
    for process in processes:
        try:
            # A pidfd cannot hit a stranger that got the pid after the check.
            handle = os.pidfd_open(process.pid)
        except OSError:
            continue
        try:
            if process.alive():
                signal.pidfd_send_signal(handle, number)
        except OSError:
            pass
        finally:
            os.close(handle)


def _wait(processes: list[Process], until: float, clock: Callable[[], float]) -> list[Process]:
    pause = 0.01
    while (left := [process for process in processes if process.alive()]) and clock() < until:
        time.sleep(pause)
        pause = min(0.2, pause * 2)
    return left


def _mine() -> Iterator[Process]:
    uid = os.getuid()
    for entry in os.scandir(_PROC):
        if not entry.name.isdigit():
            continue
        try:
            if entry.stat().st_uid != uid:
                continue
            argv = tuple(
                os.fsdecode(part) for part in (_PROC / entry.name / "cmdline").read_bytes().split(b"\0")[:-1]
            )
        except OSError:
            continue
        stat = _stat(int(entry.name))
        if stat is not None and stat[2] not in "ZX":
            yield Process(int(entry.name), stat[1], stat[0], argv)


def _stat(pid: int) -> tuple[str, int, str, int] | None:
    """(name, start time, state, parent) of a process; None when it is gone."""
    try:
        raw = (_PROC / str(pid) / "stat").read_bytes()
    except OSError:
        return None
    head, _, tail = raw.rpartition(b")")  # the name may hold spaces and brackets
    fields = tail.split()
    return os.fsdecode(head.partition(b"(")[2]), int(fields[19]), fields[0].decode(), int(fields[1])


def _environment(pid: int) -> set[bytes]:
    try:
        return set((_PROC / str(pid) / "environ").read_bytes().split(b"\0"))
    except OSError:
        return set()


def _ancestors() -> frozenset[int]:
    pids: set[int] = set()
    pid = os.getpid()
    while pid > 0 and pid not in pids:
        pids.add(pid)
        stat = _stat(pid)
        pid = stat[3] if stat else 0
    return frozenset(pids)


def open_files(pid: int) -> Iterator[tuple[str, str]]:
    """Descriptor and path of each file that a process has open."""
    folder = _PROC / str(pid) / "fd"
    with contextlib.suppress(OSError):
        for fd in os.listdir(folder):
            with contextlib.suppress(OSError):  # closed meanwhile
                yield fd, os.readlink(folder / fd)


def _opened_for_writing(pid: int, fd: str) -> bool:
    with contextlib.suppress(OSError):
        for line in (_PROC / str(pid) / "fdinfo" / fd).read_text().splitlines():
            if line.startswith("flags:"):
                return int(line.split()[1], 8) & os.O_ACCMODE != os.O_RDONLY
    return False
