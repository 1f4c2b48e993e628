"""GPUs and their place, from what the vendors' tools print; NeMo RL's own probe finds the same."""

from __future__ import annotations

import json
import mmap
import os
import re
import subprocess
from pathlib import Path

import pytest
from tests import upstream
from tests.needs import need

from rlprof_ops.host import topology
from rlprof_ops.host.gpus import visible_gpus
from rlprof_ops.job.knobs import Settings, home, read_env_file
from rlprof_ops.supervisor.node.ray_process import RayNode, gpu_count, resources

LIST = """\
GPU 0: NVIDIA H100 80GB HBM3 (UUID: GPU-5a1c)
  MIG 1g.10gb     Device  0: (UUID: MIG-1)
  MIG 1g.10gb     Device  1: (UUID: MIG-2)
GPU 1: NVIDIA H100 80GB HBM3 (UUID: GPU-77b0)
"""
QUERY = """\
    Fabric
        State                             : Completed
        Status                            : Success
        CliqueId                          : 32766
        ClusterUUID                       : 8b1c7a22-4f6a-4b7d-9d7e-0a1b2c3d4e5f
"""
MATRIX = (
    "\tGPU0\tGPU1\tGPU2\tNIC0\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\n"
    "GPU0\t X \tNV18\tNV18\tSYS\t0-3\t0\tN/A\n"
    "GPU1\tNV18\t X \tNV18\tSYS\t\t0,2-17\t18\n"
    "GPU2\tNV18\tNV18\t X \tSYS\t0-3\t99\tN/A\n"
    "NIC0\tSYS\tSYS\tSYS\t X \n\nLegend:\n\n  X    = Self\n"
)


@pytest.fixture
def nvidia(tmp_path: Path, monkeypatch) -> Path:
    """An nvidia-smi that prints the above, alone of its kind on PATH."""
    tools = tmp_path / "tools"
    tools.mkdir()
    cases = {"-L": LIST, "-q": QUERY, "topo": MATRIX}
    for word, text in cases.items():
        (tools / f"said{word}").write_text(text)
    (tools / "nvidia-smi").write_text(f'#!/bin/sh\nexec cat "{tools}/said$1"\n')
    (tools / "nvidia-smi").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tools}:{os.environ['PATH']}")
    return tools


def test_gpus_that_slurm_does_not_count(nvidia, monkeypatch):
    job = {"SLURM_JOB_ID": "7"}
    assert visible_gpus() == 2
    assert gpu_count(Settings.load({}), job) == 2
    assert gpu_count(Settings.load({"GPUS_PER_NODE": "1"}), job) == 1
    assert gpu_count(Settings.load({}), {**job, "CUDA_VISIBLE_DEVICES": "3"}) == 1
    assert gpu_count(Settings.load({}), {**job, "SLURM_GPUS_ON_NODE": "1"}) == 1
    assert gpu_count(Settings.load({}), {**job, "RLPROF_SLURM_COUNTS_GPUS": "1"}) == 0, "somebody else's"
    assert gpu_count(Settings.load({}), {}) == 0, "a run on one's own machine says what it wants"


def test_gpus_of_amd_and_tools_that_fail(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    tool = tmp_path / "nvidia-smi"
    tool.write_text("#!/bin/sh\necho No devices were found\nexit 6\n")
    other = tmp_path / "rocm-smi"
    other.write_text("""#!/bin/sh\necho '{"card0": {"GPU ID": "0x740c"}, "card1": {}, "system": {}}'\n""")
    for each in (tool, other):
        each.chmod(0o755)
    assert visible_gpus() == 2
    other.write_text("#!/bin/sh\necho 'WARNING: no driver'\n")
    assert visible_gpus() == 0


@pytest.mark.parametrize(
    ("place", "index"),
    [
        ({}, 0),
        ({}, 3),
        ({"SLURM_TOPOLOGY_ADDR": "block08.node-017", "SLURM_TOPOLOGY_ADDR_PATTERN": "block.node"}, 2),
    ],
)
def test_nemo_rls_own_probe_finds_the_same(nvidia, tmp_path, place, index):
    need("upstream")
    script = (upstream.tree("nemo_rl") / "ray.sub").read_text()
    (probe,) = re.findall(r"<<TOPO_PROBE_EOF\n(.*?)\nTOPO_PROBE_EOF", script, re.DOTALL)
    theirs = tmp_path / "affinity"
    run = f"""GPUS_PER_NODE=2 head_node=n0
cat > {tmp_path}/probe <<TOPO_PROBE_EOF
{probe.replace("/tmp/nrl_gpu_cpu_affinity", str(theirs))}
TOPO_PROBE_EOF
source {tmp_path}/probe > /dev/null
printf '%s' "$RAY_RESOURCES"
"""
    env = {
        "PATH": os.environ["PATH"],
        "SLURMD_NODENAME": f"n{index}",
        "SLURM_PROCID": str(max(0, index - 1)),
        **place,
    }
    said = subprocess.run(
        ["bash", "-c", run], env=env, capture_output=True, text=True, timeout=180, check=True
    )

    node = RayNode("n", "1", "1:1", False, 2, tmp_path, 0, topology.resources(place, index))
    ours = resources(Settings.load({}), node)
    assert {name: value for name, value in ours.items() if name != "slurm_node:n"} == json.loads(
        said.stdout.replace("\\", "")
    )
    assert topology.write_affinity(tmp_path / "ours") == bool(theirs.read_text())
    assert (tmp_path / "ours").read_text() == theirs.read_text() != ""


def test_without_gpus_there_is_the_order_alone(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert topology.resources({}, 4) == {"topo_rank": 5}
    assert not topology.write_affinity(tmp_path / "ours")


@pytest.mark.parametrize("trainer", ["nemo_rl", "nemo_rl_megatron"])
def test_each_setting_for_many_nodes_is_one_that_ray_has(trainer):
    need("ray")
    import ray

    names = [name.removeprefix("RAY_") for name in read_env_file(home() / "env" / f"trainer_{trainer}.env")]
    names = [name for name in names if re.fullmatch(r"[a-z_]+", name)]
    assert len(names) > 10
    with (
        open(Path(ray.__file__).parent / "_raylet.so", "rb") as library,
        mmap.mmap(library.fileno(), 0, access=mmap.ACCESS_READ) as text,
    ):
        assert [name for name in names if text.find(name.encode()) < 0] == []
