"""An nsys that hangs for every second worker of a trainer that nobody knows: training goes on, and each
window that was asked for is a report or a line with the cause.
"""

from __future__ import annotations

import os
import shlex
import sys
from pathlib import Path

import pytest
from tests.nsys_stand_in import hanging_nsys

pytest.importorskip("ray")

from rlprof_ops.collect.harvest.manifest import Manifest

pytestmark = [pytest.mark.ray, pytest.mark.nsys, pytest.mark.whole, pytest.mark.timeout(300)]

TRAINER = """
import time
import ray
from rlprof_ops.runtime import profiler

@ray.remote(num_cpus=0)
class Policy:
    def train(self):
        import nvtx
        with nvtx.annotate("train"):
            time.sleep(0.05)

ray.init(log_to_driver=False, logging_level="error")
workers = [Policy.remote() for _ in range(4)]
ray.get([worker.train.remote() for worker in workers])
prof = profiler.from_env(worker="driver")
for step in (1, 2, 3):
    with prof.step(step):
        ray.get([worker.train.remote() for worker in workers])
print("trained with all four", flush=True)
"""


def test_each_window_is_a_report_or_says_that_nsys_hung(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    from rlprof_ops.demo.local_job import run_local

    for name in [name for name in os.environ if name.startswith(("RLPROF_", "RAY_"))]:
        monkeypatch.delenv(name)
    nsys = hanging_nsys(tmp_path, "launch*-policy-r[13]-*")
    trainer = tmp_path / "trainer.py"
    trainer.write_text(TRAINER)
    lines: list[str] = []

    result = run_local(
        tmp_path,
        {
            "COMMAND": shlex.join([sys.executable, str(trainer)]),
            "RLPROF_STEPS": "2",
            "RLPROF_WORKERS": "policy",
            "RLPROF_OPTIONS": '{"t": "nvtx"}',
            "RLPROF_NSYS": str(nsys),
            "RAY_LOG_SYNC_FREQUENCY": "2",
        },
        lines.append,
    )

    assert "trained with all four" in lines, lines
    [run] = tmp_path.glob("local-*-logs")
    found = {capture.id: (capture.state, capture.reason) for capture in Manifest.load(run).captures}
    why = "nsys launch hung for 20 s before the program began, 3 times; its own words are in the log"
    expected = [("ok", ""), ("missing", why), ("ok", ""), ("missing", why)]
    assert [found.pop(f"nsight/policy/rank{rank}/step2-2") for rank in range(4)] == expected
    assert result.exit_code == 0 and not found
