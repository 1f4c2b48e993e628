"""What supervisors of a simulated job see of Ray's head: a port that answers."""

from __future__ import annotations

import socket
import sys


def listen(address: str) -> None:
    host, _, port = address.rpartition(":")
    with socket.create_server((host, int(port)), backlog=4096) as server:
        while True:
            server.accept()[0].close()


if __name__ == "__main__":
    listen(sys.argv[1])
