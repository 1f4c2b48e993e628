"""What a policy of NeMo RL does when the interpreter ends: it calls a Ray that is gone."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from rlprof_ops.job.knobs import python_path

pytest.importorskip("ray")

# `nemo_rl.utils.nsys` keeps the policy in a handler, and the policy (`models/policy/lm_policy.py`) ends its
# workers in `__del__`.
PROGRAM = """
import atexit, sys
import ray
from rlprof_ops.trainers.nemo_rl import adapter

class Policy:
    def __del__(self):
        try:
            ray.get_actor("worker")
        except Exception as error:
            print(type(error).__name__)

ray.init = lambda: print("connects")
atexit.register(lambda policy: None, Policy())
if sys.argv[1:]:
    adapter._DRIVER.begin(1)
"""


@pytest.mark.parametrize("ours", [False, True])
def test_nobody_connects_to_a_ray_any_more(ours: bool):
    env = {"PATH": os.environ["PATH"], "PYTHONPATH": python_path(None)}
    argv = [sys.executable, "-c", PROGRAM, *(["ours"] if ours else [])]
    done = subprocess.run(argv, env=env, capture_output=True, text=True, timeout=120, check=False)
    assert done.stdout.split() == [*([] if ours else ["connects"]), "RaySystemError"], done.stderr
