"""The `ray start` line and its environment."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from rlprof_ops.errors import UsageError
from rlprof_ops.host.ports import check_free, listening
from rlprof_ops.job.knobs import Settings
from rlprof_ops.supervisor.node.ray_process import (
    _UP,
    RayNode,
    RayProcess,
    cpu_count,
    gpu_count,
    no_authentication,
    resources,
    start_argv,
    stripped,
)


def node(is_head: bool = False, gpus: int = 8) -> RayNode:
    return RayNode("n1", "10.0.0.1", "10.0.0.9:6400", is_head, gpus, Path("/tmp/r/ray"))


def options(argv: list[str]) -> dict[str, str]:
    return dict(part[2:].partition("=")[::2] for part in argv if part.startswith("--"))


def test_head_line():
    found = options(start_argv(Settings.load({}), node(is_head=True), "/venv/bin/python"))

    assert found["port"] == "6400"
    assert found["temp-dir"] == "/tmp/r/ray"
    assert found["node-ip-address"] == "10.0.0.1"
    assert found["include-dashboard"] == "false"
    assert found["num-gpus"] == "8"
    assert json.loads(found["resources"]) == {
        "slurm_node:n1": 1,
        "slurm_managed_ray_cluster": 1,
        "worker_units": 8,
    }
    assert "address" not in found


def test_worker_line_has_the_heads_address_and_no_fixed_port():
    found = options(start_argv(Settings.load({}), node(), "python3"))

    assert found["address"] == "10.0.0.9:6400"
    assert "head" not in found
    assert found["dashboard-agent-listen-port"] not in ("0", "52365")
    assert (found["min-worker-port"], found["max-worker-port"]) == ("0", "0")


def test_knobs_reach_the_line():
    env = {
        "NODE_MANAGER_PORT": "1301",
        "MIN_WORKER_PORT": "2000",
        "MAX_WORKER_PORT": "2999",
        "RLPROF_DASHBOARD": "1",
        "DASHBOARD_PORT": "8265",
        "CPUS_PER_WORKER": "64",
        "RAY_DEBUG": "legacy",
    }
    found = options(start_argv(Settings.load(env), node(is_head=True), "python3"))

    assert found["node-manager-port"] == "1301"
    assert (found["min-worker-port"], found["max-worker-port"]) == ("2000", "2999")
    assert (found["dashboard-host"], found["dashboard-port"]) == ("127.0.0.1", "8265")
    assert "ray-debugger-external" in found


def test_ray_gets_the_cpus_that_slurm_gave():
    slurm = {"SLURM_CPUS_ON_NODE": "8"}
    assert cpu_count(Settings.load({}), slurm) == 8
    assert cpu_count(Settings.load({"CPUS_PER_WORKER": "64"}), slurm) == 64
    assert cpu_count(Settings.load({}), {}) == 0
    line = start_argv(Settings.load({}), replace(node(), cpus=8), "p")
    assert options(line)["num-cpus"] == "8"
    assert "num-cpus" not in options(start_argv(Settings.load({}), node(), "p"))


def test_dashboard_and_client_server_are_where_rays_guides_have_them_when_asked(monkeypatch):
    def ports(**knobs: str) -> tuple[str | None, str | None]:
        found = options(start_argv(Settings.load(knobs), node(is_head=True), "python3"))
        return found.get("dashboard-port"), found["ray-client-server-port"]

    monkeypatch.setattr("rlprof_ops.host.ports.listening", frozenset)
    dashboard, client = ports()
    assert dashboard is None and client not in ("10001", None) and int(client) >= 1024
    assert ports(RAY_CLIENT_SERVER_PORT="10002") == (None, "10002")
    assert ports(RLPROF_DASHBOARD="1") == ("8265", "10001")
    monkeypatch.setattr("rlprof_ops.host.ports.listening", lambda: frozenset({8265, 10001}))
    assert not {"8265", "10001", "0"} & set(ports(RLPROF_DASHBOARD="1"))


def test_no_two_ports_of_a_line_are_the_same(monkeypatch):
    """The kernel may give a port twice while nobody listens there; then Ray does not start."""
    given = iter([6400, 1301, 7001, 7001, 7001, 7002])

    class Probe:
        def __enter__(self):
            return self

        def __exit__(self, *_: object):
            return None

        def bind(self, _: object):
            return None

        def getsockname(self):
            return "", next(given)

    monkeypatch.setattr("rlprof_ops.host.ports.socket.socket", Probe)
    found = options(start_argv(Settings.load({"NODE_MANAGER_PORT": "1301"}), node(is_head=True), "p"))
    assert (found["dashboard-agent-listen-port"], found["ray-client-server-port"]) == ("7001", "7002")


def test_a_dedicated_head_takes_no_gpu_work():
    settings = Settings.load({"DEDICATED_RAY_HEAD": "1"})

    assert resources(settings, node(is_head=True)) == {"slurm_node:n1": 1, "ray_head": 1}
    assert options(start_argv(settings, node(is_head=True), "p"))["num-gpus"] == "0"
    assert resources(settings, node()) == {
        "slurm_node:n1": 1,
        "slurm_managed_ray_cluster": 1,
        "worker_units": 8,
    }


@pytest.mark.parametrize(
    ("env", "count"),
    [
        ({}, 0),
        ({"CUDA_VISIBLE_DEVICES": "0,1"}, 2),
        ({"CUDA_VISIBLE_DEVICES": "NoDevFiles", "SLURM_GPUS_ON_NODE": "4"}, 4),
        ({"CUDA_VISIBLE_DEVICES": "0,1", "GPUS_PER_NODE": "1"}, 1),
        ({"SLURM_GPUS_ON_NODE": "h100:4"}, 0),
    ],
)
def test_gpus_come_from_the_knob_then_from_slurm(env, count):
    assert gpu_count(Settings.load(env), env) == count


def test_rays_processes_do_not_see_slurms_mpi_variables():
    env = {"SLURM_PROCID": "1", "PMIX_RANK": "0", "OMPI_X": "1", "RLPROF_NODE": "n1", "MPICH_X": "1"}
    assert stripped(env) == {"RLPROF_NODE": "n1", "MPICH_X": "1"}


def test_a_port_in_use_is_named_with_its_knob_and_node():
    with socket.socket() as busy:
        busy.bind(("127.0.0.1", 0))
        busy.listen()
        port = busy.getsockname()[1]
        assert port in listening()
        with pytest.raises(
            UsageError, match=f"node n1: port in use: PORT={port}. Another process listens there"
        ):
            check_free({"PORT": port, "DASHBOARD_PORT": 0}, "n1")


@pytest.mark.parametrize("split", [False, True])
def test_a_line_of_any_length_ends_no_reader(tmp_path, split):
    """Ray prints an environment on one line; what follows is still read, also when it comes in two pieces."""
    up = _UP.decode()
    pieces = (up[:5], up[5:]) if split else (up,)
    code = f"""
import sys, time
sys.stdout.write("x" * 1_000_000)
for piece in {pieces!r}:
    sys.stdout.write(piece); sys.stdout.flush(); time.sleep(0.3)
print("\\nafter", flush=True)
"""

    async def scene() -> None:
        ray = RayProcess.start([sys.executable, "-c", code], os.environ, tmp_path / "ray.log", tmp_path)
        await asyncio.wait_for(ray.gone.wait(), 60)
        assert ray.up.is_set()
        assert ray.tail(1) == "after"

    asyncio.run(scene())


@pytest.mark.parametrize(
    ("version", "open_to_all"),
    [("2.49.2", True), ("2.51.0", True), ("2.52.0", False), ("2.60.0", False), ("3.0.0", False), ("", False)],
)
def test_a_ray_without_authentication_is_known_by_its_version(version, open_to_all):
    assert bool(no_authentication(version)) is open_to_all
    assert not open_to_all or f"Ray {version} runs without authentication" in no_authentication(version)
