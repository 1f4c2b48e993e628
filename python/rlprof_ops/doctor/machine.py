"""A node's room: disk, shared memory, open files, ports, and the length of Ray's socket paths."""

from __future__ import annotations

import os
import resource
import shutil
from collections.abc import Iterator
from pathlib import Path

from rlprof_ops.doctor.finding import FAIL, OK, WARN, Finding
from rlprof_ops.host import ports
from rlprof_ops.job.knobs import Settings
from rlprof_ops.supervisor.ray_process import port_knobs
from rlprof_ops.words import size

_GIB = 1 << 30
_TEMP_DIR_MOST = 43  # <temp-dir>/session_<time>_<pid>/sockets/plasma_store has 107 bytes at most, unix(7)
_FILES = 65536


def space(path: Path, what: str, warn_gib: float = 10, fail_gib: float = 1) -> Finding:
    try:
        free = shutil.disk_usage(path).free
    except OSError as error:
        return Finding(
            f"space: {what}",
            FAIL,
            f"{path}: {error.strerror}",
            f"choose a folder that exists on every node for {what}",
        )
    state = FAIL if free < fail_gib * _GIB else WARN if free < warn_gib * _GIB else OK
    return Finding(
        f"space: {what}",
        state,
        f"{size(free)} free in {path}",
        ""
        if state == OK
        else "a report is 50 to 500 MiB a rank and step: make room, or choose another folder",
    )


def room(settings: Settings, shared: Path | None) -> Iterator[Finding]:
    yield space(Path(settings["RLPROF_NODE_ROOT"]), "RLPROF_NODE_ROOT")
    if shared is not None:
        yield space(shared, "run folder")
    yield space(Path("/dev/shm"), "/dev/shm (Ray's object store)", warn_gib=2, fail_gib=0.1)
    temp = f"{settings['RLPROF_NODE_ROOT'].rstrip('/')}/rlprof-{os.getuid()}-0000000.r1/ray"
    long = len(temp) > _TEMP_DIR_MOST
    yield Finding(
        "socket paths",
        FAIL if long else OK,
        f"{len(temp)} characters for Ray's temporary folder, {_TEMP_DIR_MOST} fit",
        f"shorten RLPROF_NODE_ROOT={settings['RLPROF_NODE_ROOT']!r}: Ray's sockets have at most 107 bytes"
        if long
        else "",
    )
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    few = hard != resource.RLIM_INFINITY and hard < _FILES
    yield Finding(
        "open files",
        WARN if few else OK,
        f"at most {'unlimited' if hard == resource.RLIM_INFINITY else hard}",
        f"raise the hard limit to {_FILES} (LimitNOFILE of slurmd) for large jobs" if few else "",
    )
    bash = shutil.which("bash")
    yield Finding(
        "bash",
        OK if bash else FAIL,
        bash or "not there",
        "" if bash else "Ray starts workers through bash: install it in the image",
    )


def port_check(settings: Settings) -> Iterator[Finding]:
    wanted = {name: port for name, port in port_knobs(settings, True).items() if port}
    taken = ports.listening()
    clashes = [f"{name}={port}" for name, port in wanted.items() if port in taken]
    if clashes:
        yield Finding(
            "ports",
            FAIL,
            f"in use: {', '.join(clashes)}",
            "choose another port, or 0 to have a free one chosen",
        )
    elif wanted:
        yield Finding("ports", OK, f"free: {', '.join(f'{name}={port}' for name, port in wanted.items())}")
    else:
        yield Finding("ports", OK, f"all chosen by the job; {len(taken)} are in use here")
