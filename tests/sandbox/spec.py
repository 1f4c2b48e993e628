"""What a sandbox is made of, as data: nodes, addresses, sizes, time limits, and the Slurm configuration
they give.
"""

from __future__ import annotations

import dataclasses
import json
import re
from dataclasses import dataclass
from pathlib import Path

BASE = Path("/var/lib/rlprof-sandbox")
"""Every sandbox is one folder here. Not /tmp, because the nodes have a /tmp of their own."""

LOGIN = "login"
NETWORK = "10.77.0"
"""The same in every sandbox: each has a bridge in a network namespace of its own."""

DESCRIPTIONS = {
    "name": "names the sandbox and its folder",
    "nodes": "number of nodes, n1 to nN",
    "gpus": "fake GPUs per node; jobs get CUDA_VISIBLE_DEVICES, nothing computes on them",
    "cpus": "CPUs each node claims to have; the machine may have fewer",
    "memory_mb": "MiB each node claims to have",
    "shared_mb": "size of the shared folder's own filesystem in MiB",
    "shm_mb": "size of each node's own /dev/shm in MiB",
    "kill_wait": "KillWait: seconds between SIGTERM and SIGKILL at a job's end",
    "slurmd_timeout": "SlurmdTimeout: seconds until a silent node is DOWN",
    "resolve": "host names a node resolves: none, self (as on clusters with odd DNS) or all",
    "extra_conf": "more lines for slurm.conf",
    "slurm": "folder of another Slurm, as env/setup_newer_slurm.sh makes it; empty: this machine's own",
}


class SandboxError(Exception):
    """The sandbox could not do what was asked; says what failed, and shows the ends of the daemons' logs."""


@dataclass(frozen=True)
class Spec:
    """A sandbox before it is up. See DESCRIPTIONS for each field."""

    name: str
    nodes: int = 3
    gpus: int = 2
    cpus: int = 16
    memory_mb: int = 32000
    shared_mb: int = 2048
    shm_mb: int = 4096
    kill_wait: int = 30
    slurmd_timeout: int = 60
    resolve: str = "self"
    extra_conf: str = ""
    slurm: str = ""
    visible: tuple[str, ...] = ()
    """Host folders below /tmp that every node still sees although its /tmp is its own."""
    opened: tuple[str, ...] = ()
    """Folders in a folder that only root may enter; inside, everybody reaches them, and nothing else of
    that folder is there.
    """

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,31}", self.name):
            raise SandboxError(
                f"name '{self.name}': allowed are 1 to 32 of A-Z a-z 0-9 _ . - beginning with a letter or"
                " digit"
            )
        if not 1 <= self.nodes <= 100:
            raise SandboxError(f"nodes {self.nodes}: allowed is 1 to 100")
        if self.resolve not in ("none", "self", "all"):
            raise SandboxError(f"resolve '{self.resolve}': allowed are none, self, all")

    @property
    def dir(self) -> Path:
        return BASE / self.name

    @property
    def shared(self) -> Path:
        return self.dir / "shared"

    @property
    def node_names(self) -> tuple[str, ...]:
        return tuple(f"n{i}" for i in range(1, self.nodes + 1))

    def address(self, box: str) -> str:
        """The IPv4 address of a node or of the login node."""
        return f"{NETWORK}.{254 if box == LOGIN else int(box[1:])}"

    def to_json(self) -> str:
        return json.dumps(dataclasses.asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Spec:
        fields = json.loads(text)
        return cls(**{**fields, "visible": tuple(fields["visible"]), "opened": tuple(fields["opened"])})


def slurm_conf(spec: Spec) -> str:
    """The text of slurm.conf.

    config_overrides: nodes claim more CPUs than the machine has. linuxproc and task/none: no cgroup is
    needed. The scheduler looks at once instead of waiting for more jobs. No accounting, so `sacct` answers
    nothing.
    """
    where = spec.dir
    nodes = "\n".join(
        f"NodeName={node} NodeAddr={spec.address(node)} CPUs={spec.cpus} RealMemory={spec.memory_mb}"
        + (f" Gres=gpu:{spec.gpus}" if spec.gpus else "")
        for node in spec.node_names
    )
    return f"""\
ClusterName={spec.name.replace(".", "-").lower()}
SlurmctldHost={LOGIN}({spec.address(LOGIN)})
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket={where}/munge/socket
CredType=cred/munge
StateSaveLocation={where}/ctl/state
SlurmctldPidFile={where}/ctl/slurmctld.pid
SlurmctldLogFile={where}/ctl/slurmctld.log
SlurmdSpoolDir={where}/nodes/%n/spool
SlurmdPidFile={where}/nodes/%n/slurmd.pid
SlurmdLogFile={where}/nodes/%n/slurmd.log
SlurmdParameters=config_overrides
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU_Memory
DefMemPerNode=1000
SchedulerType=sched/backfill
SchedulerParameters=bf_interval=1,sched_min_interval=0,batch_sched_delay=0
GresTypes=gpu
ReturnToService=2
KillWait={spec.kill_wait}
SlurmdTimeout={spec.slurmd_timeout}
MessageTimeout=10
TCPTimeout=2
InactiveLimit=0
MinJobAge=3600
{nodes}
PartitionName=batch Nodes=ALL Default=YES MaxTime=INFINITE State=UP
{spec.extra_conf}
"""


def gres_conf(spec: Spec) -> str:
    if not spec.gpus:
        return ""
    files = f"{spec.dir}/dev/gpu[0-{spec.gpus - 1}]" if spec.gpus > 1 else f"{spec.dir}/dev/gpu0"
    return f"NodeName={','.join(spec.node_names)} Name=gpu File={files}\n"


def hosts_file(spec: Spec, box: str) -> str:
    known = {"none": (), "self": (box,), "all": (LOGIN, *spec.node_names)}[spec.resolve]
    return "127.0.0.1 localhost\n" + "".join(f"{spec.address(name)} {name}\n" for name in known)
