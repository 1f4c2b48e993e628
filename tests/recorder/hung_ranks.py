"""Real gloo ranks that hang, or only take their time: `python hung_ranks.py FOLDER SCENARIO`.

Run with what a job's processes have in their environment; each rank is a fork. Whoever starts this ends its
process group. `run_rank` is for ranks that are processes already, as Ray's actors on several nodes.
"""

from __future__ import annotations

import datetime
import fcntl
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import torch
import torch.distributed as dist

SIZES = {"leaves_early": 3, "stopped": 4, "other_shape": 3}
TIMEOUT_S = 60.0
SHORT_S = 24.0  # where a word is expected at half of it


def steps(count: int = 3) -> None:
    for _ in range(count):
        dist.all_reduce(torch.ones(4, 5))


def sleeps(rank: int, folder: str) -> None:
    steps()
    if rank == 1:
        time.sleep(600)
    steps()


def leaves_early(rank: int, folder: str) -> None:
    for step in range(6):
        if rank == 2 and step == 3:
            break
        steps(1)
    threading.Event().wait()


def other_collective(rank: int, folder: str) -> None:
    steps()
    if rank == 1:
        dist.barrier()
    steps()


def other_shape(rank: int, folder: str) -> None:
    """The source is late; gloo would end a rank that meets another shape."""
    steps()
    if rank == 2:
        time.sleep(600)
    dist.broadcast(torch.ones(4, 6 if rank == 1 else 5), src=2)


def stopped(rank: int, folder: str) -> None:
    steps()
    if rank == 3:
        while not os.path.exists(f"{os.environ['RLPROF_NODE_DIR']}/marks/{os.getpid()}.groups"):
            time.sleep(0.1)
        os.kill(os.getpid(), signal.SIGSTOP)
    steps()


def lock(rank: int, folder: str) -> None:
    steps()
    if rank == 1:
        held = threading.Lock()
        held.acquire()
        with held:
            pass
    steps()


def file_lock(rank: int, folder: str) -> None:
    """Another process of the node has the file; nobody gives it back."""
    steps()
    if rank == 1:
        with open(f"{folder}/lock", "w") as held, open(f"{folder}/lock", "w") as wanted:
            fcntl.flock(held, fcntl.LOCK_EX)
            fcntl.flock(wanted, fcntl.LOCK_EX)
    steps()


def dead_mount(rank: int, folder: str) -> None:
    """A file on a mount whose server takes the request and never answers. It is mounted for the server alone,
    so that it goes with it; the way there is through the server's root.
    """
    steps()
    if rank == 1:
        program = str(Path(__file__).parents[1] / "strange_storage.py")
        words = ["unshare", "--mount", sys.executable, program]
        words += [f"{folder}/mount", f"{folder}/behind", "holds=data"]
        for name in ("mount", "behind"):
            Path(folder, name).mkdir(exist_ok=True)
        server = subprocess.Popen(words, stdout=subprocess.PIPE)
        assert server.stdout is not None and server.stdout.readline() == b"ready\n"
        open(f"/proc/{server.pid}/root{folder}/mount/data").close()
    steps()


def silent_server(rank: int, folder: str) -> None:
    """Somebody whom a rank sends much to takes none of it."""
    steps()
    if rank == 1:
        with socket.create_server(("127.0.0.1", 0)) as server:
            client = socket.create_connection(server.getsockname())
            client.sendall(bytes(64 << 20))
    steps()


def network(rank: int, folder: str) -> None:
    """All come, and the interface is down: run in a network namespace of its own."""
    steps()
    if rank == 0:
        subprocess.run(["ip", "link", "set", "lo", "down"], check=True)
    dist.all_reduce(torch.ones(1 << 22))


def opposite_order(rank: int, folder: str) -> None:
    timeout = datetime.timedelta(seconds=TIMEOUT_S)
    pair = [0, dist.get_world_size() - 1]
    groups = [dist.new_group(pair, timeout, group_desc=name) for name in ("tp", "dp")]
    if rank not in pair:
        threading.Event().wait()
    for group in groups if rank == 0 else groups[::-1]:
        dist.all_reduce(torch.ones(3), group=group)


def long_checkpoint(rank: int, folder: str) -> None:
    """Rank 0 writes for most of the timeout while the others stand in a barrier."""
    steps()
    until = time.monotonic() + 0.8 * SHORT_S
    while rank == 0 and time.monotonic() < until:
        with open(f"{folder}/checkpoint", "wb") as file:
            file.write(bytes(8 << 20))
        time.sleep(0.2)
    dist.barrier()
    while True:
        steps(1)
        time.sleep(0.5)


def slow_step(rank: int, folder: str) -> None:
    """Rank 0 computes fifty times as long as in other steps, while rank 1 stands in a collective."""
    for step in range(600):
        until = time.monotonic() + (25.0 if step == 4 else 0.5)
        while rank == 0 and time.monotonic() < until:
            torch.ones(256, 256) @ torch.ones(256, 256)
        steps(1)


def run_rank(folder: str, scenario: str, rank: int, size: int) -> None:
    store = dist.FileStore(f"{folder}/{scenario}.store", size)
    timeout = datetime.timedelta(seconds=SHORT_S if scenario == "long_checkpoint" else TIMEOUT_S)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=size, timeout=timeout)
    globals()[scenario](rank, folder)


def main(folder: str, scenario: str) -> None:
    size = SIZES.get(scenario, 2)
    if scenario == "network":
        subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    for rank in range(size):
        if not os.fork():
            try:
                run_rank(folder, scenario, rank, size)
            finally:
                os._exit(1)
    for _ in range(size):
        os.wait()
    time.sleep(600)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
