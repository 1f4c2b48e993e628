"""Node resources: disk, shared memory, open files, ports, shares of CPUs, and the length of Ray's socket
paths.
"""

from __future__ import annotations

import os
import resource
import shutil
import socket
from collections.abc import Iterator, Mapping
from pathlib import Path

from rlprof_ops.check_result import FAIL, OK, WARN, CheckResult
from rlprof_ops.host import ports, processes
from rlprof_ops.job.knobs import Settings
from rlprof_ops.supervisor.node.ray_process import port_knobs
from rlprof_ops.words import size

_GIB = 1 << 30
_TEMP_DIR_MOST = 43  # <temp-dir>/session_<time>_<pid>/sockets/plasma_store has 107 bytes at most, unix(7)
_FILES = 65536


def space(path: Path, what: str, warn_gib: float = 10, fail_gib: float = 1) -> CheckResult:
    try:
        free = shutil.disk_usage(path).free
    except OSError as error:
        return CheckResult(
            f"space: {what}",
            FAIL,
            f"{path}: {error.strerror}",
            f"choose a folder that exists on every node for {what}",
        )
    state = FAIL if free < fail_gib * _GIB else WARN if free < warn_gib * _GIB else OK
    return CheckResult(
        f"space: {what}",
        state,
        f"{size(free)} free in {path}",
        ""
        if state == OK
        else "a report is 50 to 500 MiB a rank and step: make room, or choose another folder",
    )


def room(settings: Settings, shared: Path | None) -> Iterator[CheckResult]:
    yield space(Path(settings["RLPROF_NODE_ROOT"]), "RLPROF_NODE_ROOT")
    if shared is not None:
        yield space(shared, "run folder")
    yield space(Path("/dev/shm"), "/dev/shm (Ray's object store)", warn_gib=2, fail_gib=0.1)
    temp = f"{settings['RLPROF_NODE_ROOT'].rstrip('/')}/rlprof-{os.getuid()}-0000000.r1/ray"
    long = len(temp) > _TEMP_DIR_MOST
    yield CheckResult(
        "socket paths",
        FAIL if long else OK,
        f"{len(temp)} characters for Ray's temporary folder, {_TEMP_DIR_MOST} fit",
        f"shorten RLPROF_NODE_ROOT={settings['RLPROF_NODE_ROOT']!r}: Ray's sockets have at most 107 bytes"
        if long
        else "",
    )
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    few = hard != resource.RLIM_INFINITY and hard < _FILES
    yield CheckResult(
        "open files",
        WARN if few else OK,
        f"at most {'unlimited' if hard == resource.RLIM_INFINITY else hard}",
        f"raise the hard limit to {_FILES} (LimitNOFILE of slurmd) for large jobs" if few else "",
    )
    bash = shutil.which("bash")
    yield CheckResult(
        "bash",
        OK if bash else FAIL,
        bash or "not there",
        "" if bash else "Ray starts workers through bash: install it in the image",
    )


def node_root(settings: Settings) -> Iterator[CheckResult]:
    """Where finished reports wait for the sync: a memory file system goes with its node or its container."""
    root = Path(settings["RLPROF_NODE_ROOT"])
    kind = _file_system(root, Path("/proc/self/mountinfo").read_text())
    if kind in ("tmpfs", "ramfs"):
        yield CheckResult(
            "node folder",
            WARN,
            f"RLPROF_NODE_ROOT={root} is memory ({kind})",
            "reports wait there for the sync, out of the job's memory, and go with a container or a node: set"
            " RLPROF_NODE_ROOT to a local disk",
        )
    else:
        yield CheckResult("node folder", OK, f"{root} is {kind or 'on a file system not known'}")


def _file_system(path: Path, mounts: str) -> str:
    """The type of the file system that `path` lies on, by the mount table (proc_pid_mountinfo(5)); the last
    line of a place hides those before it.
    """
    best, kind = -1, ""
    for line in mounts.splitlines():
        before, _, after = line.partition(" - ")
        place = Path(before.split()[4].replace("\\040", " ")) if len(before.split()) > 4 else None
        if place is not None and path.is_relative_to(place) and len(place.parts) >= best:
            best, kind = len(place.parts), after.split()[0]
    return kind


def autogroups(proc: Path = Path("/proc"), cgroups: Path = Path("/sys/fs/cgroup")) -> CheckResult:
    """Whether each session has an equal share of a CPU, however many threads it has (sched(7), "The autogroup
    feature"): beside threads that fill the CPUs, what opens a window then waits for seconds. A CPU cgroup
    overrides that; of version 1 it is in the line of `cpu`, of version 2 it has a `cpu.weight`.
    """
    title, knob = "autogroups", "kernel.sched_autogroup_enabled"
    try:
        on = (proc / "sys/kernel/sched_autogroup_enabled").read_text().strip() == "1"
    except OSError:
        return CheckResult(title, OK, "this kernel has none")
    if not on:
        return CheckResult(title, OK, f"{knob} is 0")
    for controllers, path in processes.control_groups(os.getpid(), proc):
        version_2 = not controllers and (cgroups / path.lstrip("/") / "cpu.weight").exists()
        if version_2 or ("cpu" in controllers and path != "/"):
            return CheckResult(title, OK, f"this process is in the CPU cgroup {path}, which overrides them")
    return CheckResult(
        title,
        WARN,
        f"{knob} is 1, and no CPU cgroup overrides it",
        "windows open seconds late where training fills the CPUs: run jobs in a CPU cgroup, or have root run"
        f" `sysctl -w {knob}=0` on the nodes",
    )


_SAID_OF_NETWORK = ("RLPROF_INTERFACE", "NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME", "NCCL_IB_HCA")


def network(settings: Settings, env: Mapping[str, str]) -> CheckResult:
    """By which address the others reach this host, and what collectives are told; those variables stay as
    they are.
    """
    own = os.uname().nodename
    try:
        addresses = sorted({str(entry[4][0]) for entry in socket.getaddrinfo(own, None)})
    except OSError:
        addresses = []
    told = {**env, "RLPROF_INTERFACE": settings["RLPROF_INTERFACE"]}
    chosen = ", ".join(f"{name}={told[name]}" for name in _SAID_OF_NETWORK if told.get(name))
    said = f"{own} resolves to {', '.join(addresses) or 'nothing'}; {chosen or 'no interface is chosen'}"
    local = all(address.startswith("127.") or address == "::1" for address in addresses)
    only_v6 = bool(addresses) and all(":" in address for address in addresses)
    if settings["RLPROF_INTERFACE"] or not (local or only_v6):
        return CheckResult("network", OK, said)
    return CheckResult(
        "network",
        WARN,
        said,
        "where Slurm knows no IPv4 address of the nodes either (NodeAddr), name the network in"
        " RLPROF_INTERFACE: an interface such as ib0, or 10.1.0.0/16",
    )


def port_check(settings: Settings) -> Iterator[CheckResult]:
    wanted = {name: port for name, port in port_knobs(settings, True).items() if port}
    taken = ports.listening()
    clashes = [f"{name}={port}" for name, port in wanted.items() if port in taken]
    if clashes:
        yield CheckResult(
            "ports",
            FAIL,
            f"in use: {', '.join(clashes)}",
            "choose another port, or 0 to have a free one chosen",
        )
    elif wanted:
        yield CheckResult(
            "ports", OK, f"free: {', '.join(f'{name}={port}' for name, port in wanted.items())}"
        )
    else:
        yield CheckResult("ports", OK, f"all chosen by the job; {len(taken)} are in use here")
