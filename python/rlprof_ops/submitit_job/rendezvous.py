"""How the tasks of one job agree on head, ports and run folder without ray.sub: a file that the first task
writes.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from rlprof_ops.errors import RlprofError
from rlprof_ops.host import atomic, foreign, ports
from rlprof_ops.job.folders import RunFolder
from rlprof_ops.words import limit

_NAME = "rendezvous.json"
_PAUSE_S = 0.2
_CALLS_A_LOOK, _MOST_CALLS_A_SECOND = 2, 100  # at a file that is not there yet
_LOWEST = 10000


@dataclass(frozen=True)
class Rendezvous:
    """Where the head is. With `failed` set the first task could not start, and why."""

    head_ip: str = ""
    gcs_port: int = 0
    control_port: int = 0
    failed: str = ""


def _file(run: RunFolder) -> Path:
    return run.secrets / _NAME


def publish(run: RunFolder, what: Rendezvous) -> None:
    """Write it whole or not at all."""
    atomic.write(_file(run), json.dumps(asdict(what)), mode=0o600, durable=True)


def wait(run: RunFolder, seconds: float, rank: int = 0, tasks: int = 1) -> Rendezvous:
    """What the first task published. Raises RlprofError with its reason when it failed, after `seconds`, and
    when the file or its folder is not this user's alone.

    All `tasks` of a job together look as rarely as shared storage bears.
    """
    deadline = time.monotonic() + seconds
    pause = max(_PAUSE_S, _CALLS_A_LOOK * tasks / _MOST_CALLS_A_SECOND)
    time.sleep(min(pause * rank / tasks, seconds / 2))  # by turns
    while time.monotonic() < deadline:
        with contextlib.suppress(OSError, ValueError, TypeError):
            # It opens the folder first: NFS answers "no such file" from memory until then.
            found = Rendezvous(**foreign.parse(run.read_secret(_NAME)))
            if found.failed:
                raise RlprofError(f"the first node could not start: {found.failed}")
            return found
        time.sleep(min(pause, max(0.0, deadline - time.monotonic())))
    raise RlprofError(
        f"after {limit(seconds)} (RLPROF_READY_SECONDS) the first task has not written {_file(run)}: it has"
        " not started, or log_dir is not on storage that all nodes share."
    )


def own_address(env: Mapping[str, str]) -> str:
    """The IPv4 address at which other nodes reach this one; 127.0.0.1 without other nodes.

    Slurm's own address of the node first (as ray.sub does), then the one srun was started from, the resolver,
    the route. Each is tried by binding a socket to it: an address of another interface or host does not
    serve.

    Raises:
        RlprofError: no address serves.
    """
    if int(env.get("SLURM_JOB_NUM_NODES") or 1) == 1:
        return "127.0.0.1"
    for candidate in (_address_of_slurm, _address_of_srun, _address_of_resolver, _address_of_route):
        address = candidate(env)
        if address and _is_ours(address):
            return address
    raise RlprofError(
        f"node {os.uname().nodename}: no IPv4 address that other nodes could reach (asked Slurm, the resolver"
        " and the routes)."
    )


def _address_of_slurm(env: Mapping[str, str]) -> str:
    node = env.get("SLURMD_NODENAME", "")
    if not node or shutil.which("scontrol") is None:
        return ""
    with contextlib.suppress(OSError, subprocess.TimeoutExpired):
        shown = subprocess.run(
            ["scontrol", "-o", "show", "node", node], capture_output=True, text=True, timeout=20, check=False
        ).stdout
        words = dict(word.partition("=")[::2] for word in shown.split())
        return _resolved(words.get("NodeAddr", ""))
    return ""


def _address_of_srun(env: Mapping[str, str]) -> str:
    return _resolved(env.get("SLURM_LAUNCH_NODE_IPADDR", ""))


def _address_of_resolver(env: Mapping[str, str]) -> str:
    return _resolved(os.uname().nodename)


def _address_of_route(env: Mapping[str, str]) -> str:
    with contextlib.suppress(OSError):
        return ports.address_towards("10.255.255.255")
    return ""


def _resolved(name: str) -> str:
    with contextlib.suppress(OSError):
        found = socket.getaddrinfo(name, None, socket.AF_INET) if name else []
        return next((str(entry[4][0]) for entry in found if not str(entry[4][0]).startswith("127.")), "")
    return ""


def _is_ours(address: str) -> bool:
    with socket.socket() as probe, contextlib.suppress(OSError):
        probe.bind((address, 0))
        return True
    return False


def free_pair(seed: int) -> tuple[int, int]:
    """Two adjacent free ports below the range that the kernel hands out by itself, spread by `seed` (a job
    id).

    The same rule as slurm::free_ports in scripts/lib/slurm.sh. Raises RlprofError when there are none.
    """
    taken = ports.listening()
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
