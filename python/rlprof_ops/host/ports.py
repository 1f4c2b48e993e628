"""Ports of one node: which are taken, which one to use where a knob says 0, and to whom a process talks."""

from __future__ import annotations

import contextlib
import ipaddress
import os
import socket
import sys
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

from rlprof_ops.errors import RlprofError, UsageError
from rlprof_ops.host import processes

# States in /proc/net/tcp, see proc_net_tcp in the kernel's documentation.
_LISTEN, _ESTABLISHED, _CONNECTS = "0A", "01", "02"
_TABLES = ("/proc/net/tcp", "/proc/net/tcp6")
_LOWEST = 10000  # of the pairs that jobs get
_WAITS = ("wait_woken", "sk_", "inet_")  # where in the kernel a process waits for a connection


@dataclass(frozen=True)
class Connection:
    """One TCP connection of a process: both ends as `10.0.0.1:29500`, the bytes that the other end has not
    taken yet, and those that the process has not read yet.
    """

    here: str
    peer: str
    unsent: int
    unread: int


def _rows(tables: Collection[str]) -> Iterator[list[str]]:
    for table in tables:
        with contextlib.suppress(OSError):
            rows = map(str.split, Path(table).read_text().splitlines()[1:])
            yield from (fields for fields in rows if len(fields) > 9)


def listening(tables: Collection[str] = _TABLES) -> frozenset[int]:
    """TCP ports that some process of this network namespace listens on."""
    return frozenset(
        int(fields[1].rpartition(":")[2], 16) for fields in _rows(tables) if fields[3] == _LISTEN
    )


def connections(pid: int) -> dict[int, Connection]:
    """What a process is connected to, or about to be, by descriptor; none where that is not told."""
    sockets = {path: int(fd) for fd, path in processes.open_files(pid) if path.startswith("socket:")}
    found = {}
    for fields in _rows(
        [f"/proc/{pid}{table.removeprefix('/proc')}" for table in _TABLES] if sockets else ()
    ):
        fd = sockets.get(f"socket:[{fields[9]}]")
        if fd is not None and fields[3] in (_ESTABLISHED, _CONNECTS):
            unsent, unread = (int(part, 16) for part in fields[4].split(":"))
            found[fd] = Connection(_address(fields[1]), _address(fields[2]), unsent, unread)
    return found


def _address(told: str) -> str:
    """Of `0100007F:1F90`: the kernel prints words of 32 bits as this machine has them."""
    words, _, port = told.partition(":")
    parts = [int(words[at : at + 8], 16).to_bytes(4, sys.byteorder) for at in range(0, len(words), 8)]
    found = ipaddress.ip_address(b"".join(parts))
    found = getattr(found, "ipv4_mapped", None) or found
    return f"{found}:{int(port, 16)}" if found.version == 4 else f"[{found}]:{int(port, 16)}"


def awaited(pid: int) -> str:
    """The other end of the connection on which the main thread of a process waits in the kernel, to send, to
    receive or to connect; empty for one that waits for something else, and where the kernel does not say.
    """
    if not processes.waits_in(pid).startswith(_WAITS):
        return ""
    with contextlib.suppress(OSError, ValueError, IndexError):
        descriptor = int(Path(f"/proc/{pid}/syscall").read_text().split()[1], 16)
        found = connections(pid).get(descriptor)
        return found.peer if found else ""
    return ""


def free_port(apart_from: Collection[int] = ()) -> int:
    """A port that nobody uses now, as the kernel gives it: it may give the same one twice until somebody
    listens there. `apart_from`: those that are promised to somebody.
    """
    while True:
        with socket.socket() as probe:
            probe.bind(("", 0))
            port: int = probe.getsockname()[1]
        if port not in apart_from:
            return port


def free_pair(seed: int) -> tuple[int, int]:
    """Two adjacent free ports below the range that the kernel hands out by itself, so that it gives them to
    nobody before they are listened on; spread by `seed`, a number of the job.

    The same rule as slurm::free_ports in scripts/lib/slurm.sh. Raises RlprofError when there are none.
    """
    taken = listening()
    try:
        floor = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    except (OSError, ValueError):
        floor = 0
    floor = floor if floor > 12000 else 32768
    for attempt in range(500):
        base = _LOWEST + (seed * 2 + attempt * 14) % (floor - _LOWEST - 2)
        if base not in taken and base + 1 not in taken:
            return base, base + 1
    raise RlprofError(f"no two adjacent free ports between {_LOWEST} and {floor} on {os.uname().nodename}")


def usual_port(port: int, apart_from: Collection[int] = ()) -> int:
    """`port` where nobody of this node listens there and nobody is promised it, else a free one."""
    return free_port(apart_from) if port in listening() or port in apart_from else port


def check_free(wanted: dict[str, int], node: str) -> None:
    """Raise UsageError naming every knob of `wanted` whose port is taken on this node. 0 is never taken."""
    taken = listening()
    clashes = [f"{knob}={port}" for knob, port in wanted.items() if port and port in taken]
    if clashes:
        raise UsageError(
            f"node {node}: port in use: {', '.join(clashes)}. Another process listens there;"
            " choose another port, or 0 to have a free one chosen."
        )


def address_towards(host: str) -> str:
    """This node's own address on the way to `host`, as the kernel would route it (nothing is sent)."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((host, 9))
        address: str = probe.getsockname()[0]
        return address
