"""This node's Ray: its command line, its environment, its start and its end."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rlprof_ops import env_names
from rlprof_ops.host import foreign
from rlprof_ops.host.gpus import visible_gpus
from rlprof_ops.host.ports import free_port, usual_port
from rlprof_ops.job.knobs import Settings
from rlprof_ops.supervisor.node.node_process import NodeProcess

# MPI libraries inside the workers take these for an order to join Slurm's MPI world (NeMo RL ray.sub, verl's
# TensorRT-LLM scripts strip them for the same reason). The driver keeps them.
_STRIPPED = re.compile(r"^(SLURM|PMI|PMIX|MPI|OMPI)_")
_UP = b"Ray runtime started"
_BLOCK = 1 << 16
_LOOK_S = 0.1
_MOST_QUOTED = 80  # lines that one failed start prints: 62 of Ray 2.60 with Python 3.11
_DASHBOARD_PORT, _CLIENT_PORT = 8265, 10001  # Ray's own, which trainers' guides have in their commands
_FIRST_WITH_TOKEN = (2, 52)


@dataclass(frozen=True)
class RayNode:
    """What `ray start` needs to know of this node. `head_address` is `ip:port` of the GCS."""

    node: str
    ip: str
    head_address: str
    is_head: bool
    gpus: int
    temp_dir: Path
    cpus: int = 0  # 0: as Ray counts
    topology: Mapping[str, float] = field(default_factory=dict)  # resources that tell where it lies


def gpu_count(settings: Settings, env: Mapping[str, str]) -> int:
    """GPUS_PER_NODE, else what Slurm gave this task; where Slurm does not count this cluster's GPUs, all
    that are here.
    """
    if settings["GPUS_PER_NODE"]:
        return settings.number("GPUS_PER_NODE")
    for name in ("CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "SLURM_STEP_GPUS", "SLURM_JOB_GPUS"):
        value = env.get(name, "")
        if value and value != "NoDevFiles":
            return len([part for part in value.split(",") if part.strip()])
    on_node = env.get("SLURM_GPUS_ON_NODE", "")
    if on_node.isdigit():
        return int(on_node)
    # Where it does count them, a job that asked for none has none: they are somebody else's.
    return 0 if env.get(env_names.SLURM_COUNTS_GPUS) == "1" or "SLURM_JOB_ID" not in env else visible_gpus()


def cpu_count(settings: Settings, env: Mapping[str, str]) -> int:
    """CPUS_PER_WORKER, else what Slurm gave this step on this node (man srun, SLURM_CPUS_ON_NODE), else 0: as
    Ray counts. Ray alone counts the CPUs of the machine, whatever the job has of them.
    """
    if settings["CPUS_PER_WORKER"]:
        return settings.number("CPUS_PER_WORKER")
    on_node = env.get("SLURM_CPUS_ON_NODE", "")
    return int(on_node) if on_node.isdigit() else 0


def resources(settings: Settings, node: RayNode) -> dict[str, float]:
    """Ray resources of a node: NeMo RL's names, plus one that carries the node's Slurm name."""
    gpus = 0 if node.is_head and settings.flag("DEDICATED_RAY_HEAD") else node.gpus
    found: dict[str, float] = {f"slurm_node:{node.node}": 1}
    if node.is_head and settings.flag("DEDICATED_RAY_HEAD"):
        found["ray_head"] = 1
    else:
        found |= {"slurm_managed_ray_cluster": 1, **({"worker_units": gpus} if gpus else {})}
        found |= node.topology
    more: dict[str, float] = json.loads(settings["RLPROF_RAY_RESOURCES"] or "{}")
    return found | more


def without_blanks(python: str, folder: Path) -> str:
    """The same Python, through a link in `folder` where its own path holds a blank: at blanks Ray (2.60)
    parts the lines that start its client server and preload its allocator, and then it ends.
    """
    if not re.search(r"\s", python):
        return python
    link = folder / "python"
    link.unlink(missing_ok=True)
    link.symlink_to(Path(python).parents[1])
    return str(link / "bin" / Path(python).name)


def start_argv(settings: Settings, node: RayNode, python: str) -> list[str]:
    """The whole `ray start` line. Ports that are 0 are chosen here, each time anew and each another one, so
    that two clusters on a node do not meet.
    """
    _, _, port = node.head_address.rpartition(":")
    promised = {int(port), *port_knobs(settings, node.is_head).values()}
    argv = [
        python,
        "-c",
        "from ray.scripts.scripts import main; main()",
        "start",
        "--block",
        "--disable-usage-stats",
    ]
    argv += [f"--node-ip-address={node.ip}", f"--resources={json.dumps(resources(settings, node))}"]
    gpus = 0 if node.is_head and settings.flag("DEDICATED_RAY_HEAD") else node.gpus
    argv.append(f"--num-gpus={gpus}")
    if node.cpus:
        argv.append(f"--num-cpus={node.cpus}")
    if settings["RLPROF_OBJECT_STORE_BYTES"]:
        argv.append(f"--object-store-memory={settings['RLPROF_OBJECT_STORE_BYTES']}")
    if settings["RAY_DEBUG"] == "legacy":
        argv.append("--ray-debugger-external")
    for option, knob in _NODE_PORTS.items():
        if settings.number(knob):
            argv.append(f"--{option}={settings[knob]}")
    if not settings.number(
        "DASHBOARD_AGENT_LISTEN_PORT"
    ):  # Ray's own default is one fixed port for all clusters
        promised.add(agent_port := free_port(promised))
        argv.append(f"--dashboard-agent-listen-port={agent_port}")
    for option, knob in (("min-worker-port", "MIN_WORKER_PORT"), ("max-worker-port", "MAX_WORKER_PORT")):
        argv.append(f"--{option}={settings[knob]}")
    if not node.is_head:
        return [*argv, f"--address={node.head_address}"]
    argv += ["--head", f"--port={port}", f"--temp-dir={node.temp_dir}"]
    asked = settings.flag("RLPROF_DASHBOARD")
    # Ray starts its client server unasked, and takes no port for "not at all".
    client_port = settings.number("RAY_CLIENT_SERVER_PORT") or (
        usual_port(_CLIENT_PORT, promised) if asked else free_port(promised)
    )
    promised.add(client_port)
    argv.append(f"--ray-client-server-port={client_port}")
    if not asked:
        return [*argv, "--include-dashboard=false"]
    dashboard_port = settings.number("DASHBOARD_PORT") or usual_port(_DASHBOARD_PORT, promised)
    return [*argv, "--include-dashboard=true", f"--dashboard-host={settings['RLPROF_DASHBOARD_HOST']}",
            f"--dashboard-port={dashboard_port}"]  # fmt: skip


_NODE_PORTS = {
    "node-manager-port": "NODE_MANAGER_PORT",
    "object-manager-port": "OBJECT_MANAGER_PORT",
    "runtime-env-agent-port": "RUNTIME_ENV_AGENT_PORT",
    "dashboard-agent-grpc-port": "DASHBOARD_AGENT_GRPC_PORT",
    "dashboard-agent-listen-port": "DASHBOARD_AGENT_LISTEN_PORT",
    "metrics-export-port": "METRICS_EXPORT_PORT",
}


def port_knobs(settings: Settings, is_head: bool) -> dict[str, int]:
    """Every port this node was told to use, by its knob, for the check before the start."""
    names = list(_NODE_PORTS.values())
    if is_head:
        names += ["PORT", "RLPROF_CONTROL_PORT", "RAY_CLIENT_SERVER_PORT", "DASHBOARD_PORT"]
    return {name: settings.number(name) for name in names}


def no_authentication(version: str) -> str:
    """What is wrong with a Ray that knows no token authentication; "" for one that does."""
    numbers = tuple(int(part) for part in version.split(".")[:2] if part.isdigit())
    if len(numbers) < 2 or numbers >= _FIRST_WITH_TOKEN:
        return ""
    return (
        f"Ray {version} runs without authentication (it came with 2.52): whoever reaches its ports runs code"
        " as you"
    )


def stripped(env: Mapping[str, str]) -> dict[str, str]:
    """`env` without the variables that make MPI libraries in a worker look for Slurm."""
    return {name: value for name, value in env.items() if not _STRIPPED.match(name)}


class RayProcess:
    """`ray start --block` with its output in a file: it does not miss us. `settled` is set once it is up or
    gone.
    """

    def __init__(self, process: NodeProcess, log: Path, begin: int | None) -> None:
        """`begin`: where its output begins in `log`; None for a Ray that is up already."""
        self.process, self.log, self.begin, self.gone = process, log, begin, process.gone
        self.up, self.settled = asyncio.Event(), asyncio.Event()
        self._watching = asyncio.create_task(self._watch(begin))

    @classmethod
    def start(cls, argv: list[str], env: Mapping[str, str], log: Path, cwd: Path) -> RayProcess:
        begin = log.stat().st_size if log.exists() else 0
        return cls(NodeProcess.spawn(argv, env, cwd, log), log, begin)

    async def _watch(self, begin: int | None) -> None:
        gone = asyncio.ensure_future(self.gone.wait())
        if begin is None or await self._comes_up(begin, gone):
            self.up.set()
            self.settled.set()
        await gone
        self.settled.set()

    async def _comes_up(self, begin: int, gone: asyncio.Future[Any]) -> bool:
        with open(self.log, "rb") as file:
            file.seek(begin)
            end = b""
            while True:
                last = gone.done()
                # By blocks: a line may be longer than a reader of lines takes.
                while chunk := file.read(_BLOCK):
                    end = (end + chunk)[-len(chunk) - len(_UP) :]
                    if _UP in end:
                        return True
                if last:
                    return False
                await asyncio.wait({gone}, timeout=_LOOK_S)

    def tail(self, lines: int = 12) -> str:
        """The last lines of Ray's own output, for a message that says why it did not start. After the error
        that its dashboard did not, Ray prints the end of that one's log: the error comes first then.
        """
        said = foreign.tail(self.log).splitlines()
        errors = [line for line in said[-_MOST_QUOTED:-lines] if foreign.LOGGED_ERROR.match(line)]
        return "\n".join([*errors[:1], *said[-lines:]])
