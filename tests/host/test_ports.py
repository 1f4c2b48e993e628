"""To whom a process talks, against what the kernel says of the same sockets by other calls."""

from __future__ import annotations

import array
import contextlib
import fcntl
import os
import socket
import subprocess
import sys
import termios
from collections.abc import Iterator

import pytest
from tests.waits import wait_until

from rlprof_ops.host import ports


def counted(of: socket.socket, what: int) -> int:
    """SIOCINQ and SIOCOUTQ have the numbers of these two terminal calls."""
    found = array.array("i", [0])
    fcntl.ioctl(of, what, found)
    return found[0]


def written(address: tuple[str, int]) -> str:
    host = f"[{address[0]}]" if ":" in address[0] else address[0]
    return f"{host}:{address[1]}"


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_a_process_and_the_bytes_that_nobody_takes(host: str) -> None:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with (
        socket.create_server((host, 0), family=family) as server,
        socket.create_connection(server.getsockname()[:2]) as one,
        server.accept()[0] as other,
    ):
        one.setblocking(False)
        sent = 0
        with contextlib.suppress(BlockingIOError):
            while True:
                sent += one.send(bytes(1 << 20))

        def both() -> tuple[ports.Connection, ports.Connection]:
            found = ports.connections(os.getpid())
            assert server.fileno() not in found
            return found[one.fileno()], found[other.fileno()]

        def told() -> bool:
            queues = counted(one, termios.TIOCOUTQ), counted(other, termios.FIONREAD)
            mine, its = both()
            return (mine.unsent, its.unread) == queues and sum(queues) == sent and all(queues)

        wait_until(told, 30, both, pause_s=0.3)
        mine, its = both()
        assert (mine.here, mine.peer) == (written(one.getsockname()), written(server.getsockname()))
        assert (its.here, its.peer) == (mine.peer, mine.here)
        assert server.getsockname()[1] in ports.listening()
    assert one.fileno() not in ports.connections(os.getpid())


def test_an_address_of_version_4_in_a_socket_of_version_6() -> None:
    with socket.create_server(("::", 0), family=socket.AF_INET6, dualstack_ipv6=True) as server:
        port = server.getsockname()[1]
        with socket.create_connection(("127.0.0.1", port)), server.accept()[0] as other:
            assert ports.connections(os.getpid())[other.fileno()].here == f"127.0.0.1:{port}"


WAITS = {
    "recv": "one.recv(1)",
    "sendall": "one.sendall(bytes(64 << 20))",
    "makefile": "one.makefile().readline()",
}
NONE = {
    "sleep": "time.sleep(100)",
    "select": "select.select([one], [], [])",
    "pipe": "os.read(os.pipe()[0], 1)",
    "works": "all(iter(int, 1))",
}


@pytest.fixture
def server() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server


@pytest.mark.parametrize("does", [*WAITS, *NONE])
def test_the_connection_on_which_a_process_waits(server: socket.socket, does: str) -> None:
    address = server.getsockname()
    program = f"import os, select, socket, time; one = socket.create_connection({address!r});"
    program += "other = socket.create_connection(one.getpeername()); print(1, flush=True);"
    with subprocess.Popen(
        [sys.executable, "-c", program + {**WAITS, **NONE}[does]], stdout=subprocess.PIPE
    ) as waits:
        try:
            assert waits.stdout is not None and waits.stdout.readline() == b"1\n"
            if does in WAITS:
                wait_until(lambda: ports.awaited(waits.pid), 30)
                assert ports.awaited(waits.pid) == written(address)
            else:
                assert {ports.awaited(waits.pid) for _ in range(100)} == {""}
        finally:
            waits.kill()
    assert ports.awaited(waits.pid) == "" and ports.connections(waits.pid) == {}


def test_ports_are_free_and_differ_by_job() -> None:
    pairs = {ports.free_pair(seed) for seed in range(1, 200, 7)}
    assert len(pairs) > 20 and all(10000 <= low < high == low + 1 < 65536 for low, high in pairs)
