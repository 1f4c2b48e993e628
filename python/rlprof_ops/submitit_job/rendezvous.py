"""How the tasks of one job agree on head, ports and run folder without ray.sub: the first task answers over
TCP, and writes a file for those that cannot reach it so.
"""

from __future__ import annotations

import contextlib
import ipaddress
import json
import os
import re
import socket
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rlprof_ops.errors import RlprofError, UsageError
from rlprof_ops.host import atomic, command, foreign, ports
from rlprof_ops.job.folders import RunFolder
from rlprof_ops.job.node_context import node_name
from rlprof_ops.words import limit

_NAME = "rendezvous.json"
_PAUSE_S = 0.2
_CALLS_A_LOOK, _MOST_CALLS_A_SECOND = 2, 20  # at a file that is not there yet
_BESIDE_TCP_S = 10.0  # between two looks at it then
_ASK_EVERY_S = 1.0


@dataclass(frozen=True)
class Rendezvous:
    """Where the head is, and what Slurm is asked once: whether it counts GPUs here, and its KillWait. With
    `failed` set the first task could not start, and why.
    """

    head_ip: str = ""
    gcs_port: int = 0
    control_port: int = 0
    slurm_counts_gpus: bool = False
    kill_wait: str = ""
    failed: str = ""


def _file(run: RunFolder) -> Path:
    return run.secrets / _NAME


def publish(run: RunFolder, what: Rendezvous) -> None:
    """Write it whole or not at all."""
    atomic.write(_file(run), json.dumps(asdict(what)), mode=0o600, durable=True)


def wait(
    run: RunFolder,
    seconds: float,
    rank: int = 0,
    tasks: int = 1,
    ask: Callable[[], dict[str, Any] | None] | None = None,
) -> Rendezvous:
    """What the first task tells, by `ask` over TCP or by its file. Raises RlprofError with its reason when it
    failed, after `seconds`, and when the file or its folder is not this user's alone.

    All `tasks` of a job together look at the file as rarely as shared storage bears.
    """
    deadline = time.monotonic() + seconds
    rarely = max(_BESIDE_TCP_S if ask else _PAUSE_S, _CALLS_A_LOOK * tasks / _MOST_CALLS_A_SECOND)
    look_at = time.monotonic() + min(rarely * rank / tasks, seconds / 2)  # by turns
    pause = _ASK_EVERY_S if ask else rarely
    while time.monotonic() < deadline:
        with contextlib.suppress(OSError, ValueError, TypeError):
            told = ask() if ask else None
            if told is None and time.monotonic() >= look_at:
                look_at = time.monotonic() + rarely
                # It opens the folder first: NFS answers "no such file" from memory until then.
                told = foreign.parse(run.read_secret(_NAME))
            if told is not None:
                found = foreign.typed(told, Rendezvous)
                if found.failed:
                    raise RlprofError(f"the first node could not start: {found.failed}")
                return found
        until = min(deadline, look_at if not ask else time.monotonic() + pause)
        time.sleep(max(0.0, until - time.monotonic()))
    raise RlprofError(
        f"after {limit(seconds)} (RLPROF_READY_SECONDS) the first task has not written {_file(run)}: it has"
        " not started, or log_dir is not on storage that all nodes share."
    )


def addresses_of_head(env: Mapping[str, str], node: str) -> list[str]:
    """By which other nodes may reach the first one: what its name means here, and where srun was started."""
    return list(dict.fromkeys(filter(None, (_resolved(node), _address_of_srun(env)))))


def number_of(job: str) -> int:
    """A job's digits, by which its ports are spread."""
    return int("".join(filter(str.isdigit, job)) or 0) % 1_000_000


def own_address(env: Mapping[str, str]) -> str:
    """The IPv4 address at which other nodes reach this one; 127.0.0.1 without other nodes.

    In a Slurm job that on RLPROF_INTERFACE where it is set (as ray.sub does). Else Slurm's own address of the
    node first, then the one srun was started from, the resolver, the route. Each is tried by binding a socket
    to it: an address of another interface or host does not serve.

    Raises:
        UsageError: nothing here is on RLPROF_INTERFACE.
        RlprofError: no address serves.
    """
    if env.get("SLURM_JOB_ID") and (wanted := env.get("RLPROF_INTERFACE")):
        return _address_on(wanted, node_name(env))
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


def _address_on(wanted: str, node: str) -> str:
    """This node's first IPv4 address on an interface such as `ib0`, or in a network such as `10.1.0.0/16`:
    slurm::_address_on of scripts/lib/slurm.sh.
    """
    rows = [line.split() for line in command.output_of("ip", "-4", "-o", "addr", "show").splitlines()]
    known = [(row[1].partition("@")[0], row[3]) for row in rows if len(row) > 3]
    for name, address in known:
        if name == wanted or _is_within(address.partition("/")[0], wanted):
            return address.partition("/")[0]
    has = " ".join(f"{name}={address}" for name, address in known) or "none (is iproute2 installed?)"
    raise UsageError(f"RLPROF_INTERFACE={wanted}: node {node} has no IPv4 address there. It has: {has}.")


def _is_within(address: str, network: str) -> bool:
    with contextlib.suppress(ValueError):
        if re.fullmatch(r"[0-9.]+/[0-9]+", network):
            return ipaddress.IPv4Address(address) in ipaddress.IPv4Network(network, strict=False)
    return False


def _address_of_slurm(env: Mapping[str, str]) -> str:
    node = env.get("SLURMD_NODENAME", "")
    shown = command.run(["scontrol", "-o", "show", "node", node], 20).stdout if node else ""
    words = dict(word.partition("=")[::2] for word in shown.split())
    return _resolved(words.get("NodeAddr", ""))


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
