"""Ports of one node: which are taken, and which one to use where a knob says 0."""

from __future__ import annotations

import socket
from collections.abc import Collection
from pathlib import Path

from rlprof_ops.errors import UsageError

_LISTEN = "0A"  # state of a listening socket in /proc/net/tcp, see proc_net_tcp in the kernel's documentation


def listening(tables: tuple[str, ...] = ("/proc/net/tcp", "/proc/net/tcp6")) -> frozenset[int]:
    """TCP ports that some process of this network namespace listens on."""
    ports = set()
    for table in tables:
        try:
            rows = Path(table).read_text().splitlines()[1:]
        except OSError:
            continue
        for row in rows:
            fields = row.split()
            if len(fields) > 3 and fields[3] == _LISTEN:
                ports.add(int(fields[1].rsplit(":", 1)[1], 16))
    return frozenset(ports)


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
