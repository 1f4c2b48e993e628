"""Where this node and its GPUs lie, as NeMo RL asks for it: Ray resources by which workers are placed, and
a file by which they bind themselves to the CPUs beside their GPU. Its own ray.sub finds the same.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from rlprof_ops.host.command import output_of

_NODES = Path("/sys/devices/system/node")
_BLOCK = 10**10  # NeMo RL's: ranks of one block of switches lie together
_GPU_ROW = re.compile(r"GPU\d+\s.*\s\S")


def resources(env: Mapping[str, str], index: int) -> dict[str, float]:
    """`topo_rank` and, in a rack of GPUs that NVLink joins, `nvlink_domain_<uuid>`. `index`: this node's
    place in the job, the head's is 0.
    """
    found: dict[str, float] = {"topo_rank": rank(env, index)}
    if domain := nvlink_domain(output_of("nvidia-smi", "-q")):
        found[f"nvlink_domain_{domain}"] = 1
    return found


def rank(env: Mapping[str, str], index: int) -> int:
    """By Slurm's topology plugin where it has one, else by the order of nodes. Never 0, which Ray drops."""
    if env.get("SLURM_TOPOLOGY_ADDR_PATTERN") == "block.node":
        block, _, _ = env.get("SLURM_TOPOLOGY_ADDR", "").partition(".")
        node = env.get("SLURM_TOPOLOGY_ADDR", "").rpartition(".")[2]
        digits = [re.sub(r"\D", "", part) for part in (block, node)]
        if all(digits):
            return int(digits[0]) * _BLOCK + int(digits[1])
    return index + 1


def nvlink_domain(query: str) -> str:
    """The first ClusterUUID of `nvidia-smi -q`; empty without one."""
    found = re.search(r"ClusterUUID\s*:\s*([0-9A-Za-z-]+)", query)
    return found[1] if found else ""


def write_affinity(path: Path) -> bool:
    """`gpu:cpulist` lines, from the NUMA column of `nvidia-smi topo -m` and the kernel's lists; False without
    any.
    """
    lines = []
    for gpu, node in numa_nodes(output_of("nvidia-smi", "topo", "-m")).items():
        try:
            lines.append(f"{gpu}:{(_NODES / f'node{node}' / 'cpulist').read_text().strip()}\n")
        except OSError:
            continue
    if lines:
        path.write_text("".join(lines))
    return bool(lines)


def numa_nodes(matrix: str) -> dict[int, int]:
    """GPU -> NUMA node. The column before the last: the CPU Affinity column is empty for GPUs that hang on no
    socket, and of a list the first is the node of CPUs.
    """
    found = {}
    for row in matrix.splitlines():
        cells = row.split()
        if _GPU_ROW.match(row) and (number := re.match(r"\d+(?=[,-]|$)", cells[-2])):
            found[int(cells[0][3:])] = int(number[0])
    return found
