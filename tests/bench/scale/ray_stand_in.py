"""What supervisors of a simulated job see of Ray: a port that answers, and a list of the living nodes."""

from __future__ import annotations

import json
import os
import socket
import sys
import time


def listen(address: str) -> None:
    host, _, port = address.rpartition(":")
    with socket.create_server((host, int(port)), backlog=4096) as server:
        while True:
            server.accept()[0].close()


def alive(folder: str) -> None:
    """As gcs_probe prints it."""
    print(json.dumps({"plugin": None}), flush=True)
    last: list[str] = []
    while True:
        found = sorted(os.listdir(folder))
        if found != last:
            print(json.dumps(found), flush=True)
            last = found
        time.sleep(0.1)


if __name__ == "__main__":
    {"listen": listen, "alive": alive}[sys.argv[1]](sys.argv[2])
