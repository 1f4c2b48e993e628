"""Real trainers that profile themselves by torch.profiler while our torch window is open: nothing crashes,
their traces are whole, and the manifest says what ours yielded.

torch itself ends a process in which two overlap with SIGSEGV; see runtime/recorders/running_profilers.py.
"""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from rlprof_ops.collect.harvest.manifest import Manifest
from rlprof_ops.job.knobs import import_path
from tests.runtime.recorders.test_failing_profilers import harvested
from tests.trainers import environments, runs
from tests.trainers.local_job import LocalJob
from tests.trainers.test_off import losses

pytestmark = [pytest.mark.trainers, pytest.mark.timeout(1500)]
RUN_S = 1200
YIELDED = "yielded to a torch.profiler of the program's own"
TIMES = int(os.environ.get("RLPROF_TEST_TIMES", "1"))  # of the run with us; 20 by hand
STEPS = "2:4, 5:8"
REQUEST = {"captures": [{"backend": "torch", "workers": ["*"], "steps": STEPS}]}


def asked(node_dir: Path) -> dict[str, str]:
    """REQUEST as a user's variables, in a node folder of the test's own."""
    wanted = {"RLPROF_BACKEND": "torch", "RLPROF_STEPS": STEPS, "RLPROF_WORKERS": "*"}
    return {**wanted, "RLPROF_NODE_DIR": str(node_dir), "RLPROF_NODE": "n1"}


def test_a_trl_script_with_its_own_profiler(tmp_path: Path):
    """It starts one inside our first window, and one before our second that ends inside it."""
    if why := environments.lacking("trl"):
        pytest.skip(why)
    bare = trl(tmp_path / "bare")
    assert len(bare) == 7
    for attempt in range(TIMES):
        folder = tmp_path / f"ours-{attempt}"
        assert trl(folder, "-m", "rlprof_ops", "wrap", "--", **asked(folder / "node")) == bare
        for first in (2, 4):
            theirs, without = (trace(each / f"own-{first}.json") for each in (folder, tmp_path / "bare"))
            assert operators(theirs) == operators(without) > 0
        first, second = harvested(folder / "node", folder / "4711-logs", REQUEST).captures
        print(attempt, [(each.id, each.state, each.reason) for each in (first, second)])
        assert first.state == "truncated" and f"{YIELDED}, which began" in first.reason
        assert second.state == "truncated" and f"it begins at step 7: until then {YIELDED}" in second.reason
        [report] = (folder / "4711-logs").rglob("trainer_rank0_step5-7_*.pt.trace.json.gz")
        assert operators(trace(report)) > 0


def trl(folder: Path, *before: str, **env: str) -> list[str]:
    """Run the script, by our `python *before`; the losses that it prints."""
    folder.mkdir()
    own = str(environments.HERE / "trl")
    run = runs.trainer_run("trl", work=folder, steps=7, env={"PYTHONPATH": own})
    script = run.argv.index(f"{own}/grpo.py")
    argv = [*run.argv[:script], f"{own}/profiled_grpo.py", str(folder), "2:4,4-6", *run.argv[script + 1 :]]
    done = subprocess.run(
        [sys.executable, *before, *argv] if before else argv,
        cwd=run.cwd,
        env={**run.environment(), "PYTHONPATH": f"{import_path()}:{own}" if before else own, **env},
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    return losses(done.stdout)


@pytest.mark.long
def test_verls_own_torch_tool_beside_our_window(tmp_path: Path):
    job = LocalJob.take(
        "verl",
        tmp_path / "job",
        3,
        RUN_S,
        overrides=(
            "global_profiler.tool=torch",
            "global_profiler.steps=[2]",
            f"global_profiler.save_path={tmp_path / 'own'}",
            "actor_rollout_ref.actor.profiler.enable=True",
            "actor_rollout_ref.actor.profiler.all_ranks=True",
        ),
        GPUS_PER_NODE="1",
        RLPROF_READY_SECONDS="500",
        RLPROF_BACKEND="torch",
        RLPROF_STEPS="2",
        RLPROF_WORKERS="actor",
    )
    [own] = (tmp_path / "own").rglob("*.json.gz")
    names = {event.get("name", "") for event in trace(own)}
    assert {"actor_compute_log_prob", "actor_update"} <= names, sorted(names)[:60]
    assert any("Backward" in name for name in names)
    [capture] = Manifest.load(job.run).captures
    print(capture.id, capture.state, capture.reason)
    assert capture.id == "torch/actor/rank0/step2-2"
    assert capture.state in ("truncated", "missing") and YIELDED in capture.reason


def trace(path: Path) -> list[dict[str, Any]]:
    packed = path.read_bytes()
    events: list[dict[str, Any]] = json.loads(gzip.decompress(packed) if path.suffix == ".gz" else packed)[
        "traceEvents"
    ]
    return events


def operators(events: list[dict[str, Any]]) -> int:
    return sum(event.get("cat") == "cpu_op" for event in events)
