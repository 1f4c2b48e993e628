"""A runtime env with a PYTHONPATH of its own, as slime's launch scripts have it, in real jobs on real Ray."""

from __future__ import annotations

import os
import shlex
import sys
from pathlib import Path

import pytest
from tests.rayenv.test_loop_in_a_task import run_job

from rlprof_ops.job.knobs import adapters_path, import_path
from rlprof_ops.rayenv.worker_path import reached

OURS = f"{adapters_path()}:{import_path()}"

SCRIPT = """
import json, sys, time
import ray
from rlprof_ops.runtime import profiler
import own_module  # of the folder that the runtime env names

@ray.remote(num_cpus=0)
class PolicyWorker:
    def train(self):
        import own_module
        time.sleep(0.05)
        return own_module.__file__

where, environment = sys.argv[1], {"env_vars": {"PYTHONPATH": sys.argv[2]}}
ray.init(logging_level="error", runtime_env=environment if where == "init" else None)
made = PolicyWorker.options(runtime_env=environment) if where == "actor" else PolicyWorker
worker = made.remote()
prof = profiler.from_env()
for step in range(1, 6):
    with prof.step(step):
        print("step", step, ray.get(worker.train.remote()), flush=True)
"""
SUBMIT = 'ray job submit --address="http://127.0.0.1:8265" --runtime-env-json={} -- {}'


@pytest.mark.parametrize(
    ("given", "node", "expected"),
    [
        ("/root/Megatron-LM/", f"{OURS}:/of/the/node", f"{OURS}:/root/Megatron-LM/"),
        ("/a:/b", import_path(), f"{import_path()}:/a:/b"),  # without adapters
        (f"/a:{OURS}", OURS, f"{OURS}:/a"),  # the driver's whole environment
        ("/a:${PYTHONPATH}", OURS, "/a:${PYTHONPATH}"),
        ("/a:$PYTHONPATH", OURS, "/a:$PYTHONPATH"),
        ("/a", "/of/the/node", "/a"),  # no job of ours
        ("", OURS, OURS),
    ],
)
def test_our_folders_stand_before_what_is_given(given: str, node: str, expected: str) -> None:
    assert reached(given, node) == expected


@pytest.mark.ray
@pytest.mark.nsys
@pytest.mark.whole
@pytest.mark.timeout(700)
@pytest.mark.parametrize(
    "where",
    [pytest.param("init", marks=pytest.mark.long), "actor", pytest.param("submit", marks=pytest.mark.long)],
)
def test_workers_are_captured(where: str, tmp_path: Path) -> None:
    own = tmp_path / "own"
    own.mkdir()
    (own / "own_module.py").touch()
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    command = shlex.join([sys.executable, str(script), where, str(own)])
    if where == "submit":
        command = SUBMIT.format(shlex.quote(f'{{"env_vars": {{"PYTHONPATH": "{own}"}}}}'), command)
    else:
        command = f"PYTHONPATH=$PYTHONPATH:{shlex.quote(str(own))} {command}"
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    manifest, said = run_job(
        tmp_path, command, PATH=path, RLPROF_DASHBOARD="1", RLPROF_WORKERS="policy_worker"
    )
    assert f"step 5 {own / 'own_module.py'}" in said, said
    states = {each.id: (each.state, each.reason) for each in manifest.captures}
    assert states == {"nsight/policy_worker/rank0/step2-3": ("ok", "")}, said
