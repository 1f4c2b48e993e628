"""The process that asks which nodes are alive: killed, it is started again, and it cannot be killed for
ever.
"""

from __future__ import annotations

import asyncio
import os
import signal

import pytest

from rlprof_ops.supervisor.gcs.gcs_watcher import GcsWatcher

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
