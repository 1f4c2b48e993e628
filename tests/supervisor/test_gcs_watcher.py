"""The process that asks which nodes are alive: killed, it is started again, and it cannot be killed for
ever.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import sys
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest
from tests.needs import need

from rlprof_ops.host.ports import free_port
from rlprof_ops.job.knobs import Settings
from rlprof_ops.supervisor.gcs.gcs_watcher import GcsWatcher
from rlprof_ops.supervisor.node.ray_process import RayNode, RayProcess, start_argv

# The first line tells why the plugin does not load; an answer of the GCS would take Ray half a minute, since
# there is none.
WITHOUT_PLUGIN = {**os.environ, "RLPROF_REQUEST_JSON": "{}", "RAY_RUNTIME_ENV_PLUGINS": "[]"}


async def kills(times: int) -> tuple[object, list[str]]:
    """The first answer when the process got SIGKILL `times` times before it, and what was said; nobody
    listens at the address.
    """
    said: list[str] = []
    asking = GcsWatcher("127.0.0.1:1", WITHOUT_PLUGIN, set(), said.append)
    await asking.start()
    try:
        for number in range(times):
            assert asking._process is not None
            os.kill(asking._process.pid, signal.SIGKILL)
            while len(said) <= number:
                await asking._line()
        return await asking.answers(asyncio.get_running_loop().time() + 60), said
    finally:
        await asking.stop()


def test_a_killed_one_is_started_again_and_answers():
    answer, said = asyncio.run(kills(1))
    assert answer == ("Ray knows nothing of it", None)
    assert said == ["the process that asks which nodes are up ended with -9; starting it again"]


def test_one_that_keeps_dying_is_given_up():
    with pytest.raises(asyncio.TimeoutError):
        asyncio.run(kills(6))


@contextlib.asynccontextmanager
async def real_ray(node: RayNode, env: dict[str, str], log: Path) -> AsyncIterator[None]:
    ray = RayProcess.start(start_argv(Settings.load({}), node, sys.executable), env, log, log.parent)
    try:
        await asyncio.wait_for(ray.settled.wait(), 120)
        assert ray.up.is_set(), ray.tail()
        yield
    finally:
        await ray.stop(30)


async def two_clusters(work: Path) -> list[list[str]]:
    """What is told alive while a Ray is up, after it, and while the next one is up at the same address."""
    temp_dir = Path(f"/tmp/rlprof-g{os.getpid()}")
    node = RayNode("n1", "127.0.0.1", f"127.0.0.1:{free_port()}", True, 0, temp_dir, cpus=1)
    env = {name: value for name, value in os.environ.items() if not name.startswith(("RAY_", "RLPROF_"))}
    env |= {"RAY_AUTH_MODE": "disabled", "PYTHONPATH": os.pathsep.join(sys.path)}
    asking = GcsWatcher(node.head_address, env, set(), print)
    found: list[list[str]] = []

    async def until(up: bool) -> None:
        deadline = asyncio.get_running_loop().time() + 90
        while True:
            _, alive = await asking.answers(deadline)
            if alive is not None and bool(alive) == up:
                return found.append(alive)

    await asking.start()
    try:
        async with real_ray(node, env, work / "first.log"):
            await until(up=True)
        await until(up=False)
        async with real_ray(replace(node, temp_dir=Path(f"{temp_dir}b")), env, work / "second.log"):
            await until(up=True)
    finally:
        await asking.stop()
        for folder in (temp_dir, Path(f"{temp_dir}b")):
            shutil.rmtree(folder, ignore_errors=True)
    return found


@pytest.mark.ray
@pytest.mark.timeout(400)
def test_the_cluster_of_a_second_try_is_seen(tmp_path):
    """A `ray start` that came too late leaves an address behind which another cluster answers."""
    need("ray")
    first, none, second = asyncio.run(two_clusters(tmp_path))
    assert len(first) == 1 and none == [] and second == first
