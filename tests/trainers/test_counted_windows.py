"""Windows that begin and end by what a real vLLM engine has done, beside the passes of that engine."""

from __future__ import annotations

import asyncio
import gzip
import json
import os
import subprocess
from pathlib import Path

import pytest

from rlprof_ops.collect.event_logs import read_node
from rlprof_ops.job.knobs import python_path
from rlprof_ops.request import request_from_dict
from rlprof_ops.supervisor.control_channel import Message
from rlprof_ops.supervisor.steps.session_windows import Windows
from rlprof_ops.supervisor.steps.step_relay import StepRelay
from tests.trainers import environments

HOST = {"backend": "memory", "workers": ["*"], "options": {"host": "true", "interval_ms": "10"}}
SHARE, TOKENS = 80, (200, 350)


@pytest.mark.long
@pytest.mark.timeout(environments.INSTALL_DEADLINE_S + 600)
def test_a_window_is_where_the_engine_had_got_so_far(tmp_path: Path):
    """The engine is in the process that leads; of the node's supervisor there is the relay alone."""
    if why := environments.lacking("verl"):
        pytest.skip(why)
    captures = [
        {**HOST, "steps": "1", "after": f"{SHARE}%", "for": "1s"},
        {**HOST, "steps": "2", "tokens": f"{TOKENS[0]}:{TOKENS[1]}"},
        {**HOST, "steps": "3", "tokens": "451:480"},
    ]
    request = request_from_dict({"captures": captures})
    installed, script = environments.ensure("verl"), environments.HERE / "vllm_cpu" / "counted_requests.py"
    node_dir = tmp_path / "node"
    node_dir.mkdir()
    env = {
        **os.environ,
        "PYTHONPATH": python_path(None),
        "RLPROF_NODE_DIR": str(node_dir),
        "RLPROF_NODE": "n1",
        "RLPROF_LEADS": "1",
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "RLPROF_REQUEST_JSON": request.to_json(),
    }
    argv = [str(installed.python), "-P", str(script), str(installed.data / "model"), str(tmp_path)]

    async def tell(message: Message) -> None:
        pass

    async def job() -> None:
        relay = StepRelay(node_dir, "n1", Windows(node_dir, request, print), tell, print)
        await relay.listen(list)
        done = await asyncio.to_thread(subprocess.run, argv, env=env, timeout=500, check=True)
        assert done.returncode == 0
        relay.close()

    asyncio.run(job())
    passes = json.loads((tmp_path / "passes.json").read_text())
    [log] = [log for log in read_node(node_dir / "events") if log.windows]
    first, second, third = sorted(
        (event for event in log.windows if event.event != "opened"), key=lambda event: event.start
    )
    assert [first.event, second.event, third.event] == ["closed", "closed", "failed"], (first, second, third)

    def held(path: str) -> tuple[float, float]:
        with gzip.open(node_dir / path, "rt") as packed:
            samples = json.load(packed)["samples"]
        return samples[0][0] / 1e9, samples[-1][0] / 1e9

    begin_s, end_s = held(first.path)
    asked_s = next(at for step, at, done, _ in passes if step == 1 and done * 100 >= SHARE * 30) / 1e9
    print(f"after {SHARE}%: {begin_s - asked_s:.3f} to {end_s - asked_s:.3f} s")
    assert -0.05 <= begin_s - asked_s < 0.5 and end_s - begin_s == pytest.approx(1, abs=0.5)
    begin_s, end_s = held(second.path)
    from_s, to_s = (
        next(at for step, at, _, longest in passes if step == 2 and longest >= token) / 1e9
        for token in TOKENS
    )
    print(f"tokens: {begin_s - from_s:.3f} to {end_s - to_s:.3f} s after, {to_s - from_s:.3f} s long")
    assert -0.05 <= begin_s - from_s < 0.5 and -0.05 <= end_s - to_s < 0.5
    assert "nothing told of token 451" in third.reason
