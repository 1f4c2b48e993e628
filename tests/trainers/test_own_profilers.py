"""Real trainers that profile themselves by torch.profiler while our torch window is open: nothing crashes,
their traces are whole, and the manifest says what ours yielded.

torch itself ends a process in which two overlap with SIGSEGV; see runtime/recorders/running_profilers.py.
"""

from __future__ import annotations

import gzip
import json
import os
import signal
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

RUN_S = 1200  # of a job, or of the script alone: three processes import vLLM one after another
YIELDED = "yielded to a torch.profiler of the program's own"
TIMES = int(os.environ.get("RLPROF_TEST_TIMES", "1"))  # of the run with us; 20 by hand
pytestmark = [pytest.mark.trainers, pytest.mark.timeout(RUN_S * (1 + TIMES) + 100)]
STEPS = "2:4, 5:8"
REQUEST = {"captures": [{"backend": "torch", "workers": ["*"], "steps": STEPS}]}


def asked(node_dir: Path) -> dict[str, str]:
    """REQUEST as a user's variables, in a node folder of the test's own."""
    wanted = {"RLPROF_BACKEND": "torch", "RLPROF_STEPS": STEPS, "RLPROF_WORKERS": "*"}
    return {**wanted, "RLPROF_NODE_DIR": str(node_dir), "RLPROF_NODE": "n1"}


Bare = tuple[list[str], dict[int, int]]
"""What a script says without us, and the operators in each trace of its own."""
TRL_STEPS = 2, 4  # at which its own profilers start: inside our first window, and before our second


@pytest.fixture(scope="module")
def bare_trl(tmp_path_factory: pytest.TempPathFactory) -> Bare:
    if why := environments.lacking("trl"):
        pytest.skip(why)
    folder = tmp_path_factory.mktemp("trl") / "bare"
    said = trl("torch", folder)
    assert len(said) == 7
    return said, {first: operators(trace(own_trace(folder, first))) for first in TRL_STEPS}


@pytest.mark.parametrize("by", ["torch", "accelerate"])
def test_a_trl_script_with_its_own_profiler(by: str, bare_trl: Bare, tmp_path: Path):
    """It starts one inside our first window, and one before our second that ends inside it."""
    bare, in_theirs = bare_trl
    for attempt in range(TIMES):
        folder = tmp_path / f"ours-{attempt}"
        assert trl(by, folder, "-m", "rlprof_ops", "wrap", "--", **asked(folder / "node")) == bare
        for first in TRL_STEPS:
            assert operators(trace(own_trace(folder, first))) == in_theirs[first] > 0
        check_ours(folder, REQUEST, "step5-7", "it begins at step 7")


def own_trace(folder: Path, first: int) -> Path:
    return folder / f"own-{first}" / "profile_0.json"


def check_ours(folder: Path, request: dict[str, Any], window: str, begins: str) -> None:
    """Ours was closed in the first window when theirs began, and was late in the second."""
    first, second = harvested(folder / "node", folder / "4711-logs", request).captures
    print(folder.name, [(each.id, each.state, each.reason) for each in (first, second)])
    assert first.state == "truncated" and f"{YIELDED}, which began" in first.reason
    assert second.state == "truncated" and f"{begins}: until then {YIELDED}" in second.reason
    [report] = (folder / "4711-logs").rglob(f"*_rank0_{window}_*.pt.trace.json.gz")
    assert operators(trace(report)) > 0


def trl(by: str, folder: Path, *before: str, **env: str) -> list[str]:
    """Run the script, by our `python *before`; the losses that it prints."""
    folder.mkdir()
    own = str(environments.HERE / "trl")
    run = runs.trainer_run("trl", work=folder, steps=7)
    script = run.argv.index(f"{own}/grpo.py")
    theirs = [f"{own}/profiled_grpo.py", by, str(folder), "2:4,4-6"]
    return losses(finished(run, [*run.argv[:script], *theirs, *run.argv[script + 1 :]], own, before, env))


def finished(
    run: runs.TrainerRun, argv: list[str], path: str, before: tuple[str, ...], env: dict[str, str]
) -> str:
    """What `argv` says in the run's environment, by our `python *before` if given; it ends with 0."""
    process = subprocess.Popen(
        [sys.executable, *before, *argv] if before else argv,
        cwd=run.cwd,
        env={**run.environment(), "PYTHONPATH": f"{import_path()}:{path}" if before else path, **env},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        said, complained = process.communicate(timeout=RUN_S)
    finally:
        if process.poll() is None:  # an engine's processes outlive the one that started them
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    assert process.returncode == 0, said[-4000:] + complained[-4000:]
    return said


@pytest.mark.long
def test_a_vllm_engine_with_its_own_profiler(tmp_path: Path):
    """A rollout worker with the engine in its process: `start_profile` inside our first window, and before
    our second, in which `stop_profile` comes."""
    if why := environments.lacking("verl"):
        pytest.skip(why)
    script = "profiled_llm.py"
    bare = vllm(tmp_path / "bare", script)
    in_theirs = [operators(trace(path)) for path in engine_traces(tmp_path / "bare")]
    assert len(bare) == 6 and len(in_theirs) == 2 and min(in_theirs) > 0
    steps = "2, 4:6"
    request = {"captures": [{"backend": "torch", "workers": ["rollout"], "steps": steps}]}
    for attempt in range(TIMES):
        folder = tmp_path / f"ours-{attempt}"
        env = {**asked(folder / "node"), "RLPROF_STEPS": steps}
        said = vllm(folder, script, "-m", "rlprof_ops", "wrap", "--worker", "rollout", "--", **env)
        assert said == bare
        assert [operators(trace(path)) for path in engine_traces(folder)] == in_theirs
        check_ours(folder, request, "step4-5", "it begins at step 5")


@pytest.mark.long
@pytest.mark.parametrize("script", ["profiled_llm.py", "profiled_server.py"])
def test_a_vllm_engine_in_processes_of_its_own_with_its_own_profiler(script: str, tmp_path: Path):
    """The same worker, wrapped, as the command of a job, or a wrapped `vllm serve` that the job's driver
    asks: the engine's worker process takes the windows too, by the job's clock, and `start_profile` reaches
    that one."""
    if why := environments.lacking("verl"):
        pytest.skip(why)
    bare = vllm(tmp_path / "bare", script, VLLM_ENABLE_V1_MULTIPROCESSING="1")
    in_theirs = sorted(operators(trace(path)) for path in engine_traces(tmp_path / "bare"))
    assert len(bare) == 6 and sum(count > 0 for count in in_theirs) == 2  # a server's own traces have none
    for attempt in range(TIMES):
        folder = tmp_path / f"job-{attempt}"
        asked = {"RLPROF_BACKEND": "torch", "RLPROF_STEPS": "2, 4:6", "RLPROF_WORKERS": "rollout"}
        command = vllm_script(folder, script)
        wrap = [command[0], "-P", "-m", "rlprof_ops", "wrap", "--worker", "rollout", "--"]
        argv = [*wrap, *command] if script == "profiled_llm.py" else [*command, *wrap]
        job = LocalJob.take("verl", folder, 6, RUN_S, argv=argv, **asked)
        assert [line for line in job.output.splitlines() if line.startswith("tokens of step")] == bare
        assert sorted(operators(trace(path)) for path in engine_traces(folder)) == in_theirs
        manifest = Manifest.load(job.run)
        print(folder.name, [(each.id, each.state, each.reason) for each in manifest.captures])
        first, second = manifest.captures
        assert first.state == second.state == "truncated"
        assert f"{YIELDED}, which began" in first.reason
        assert f"it begins at step 5: until then {YIELDED}" in second.reason
        reports = [operators(trace(job.run / path)) for path in (second.report, *second.more_reports)]
        assert reports[-1] > 0 and not any(reports[:-1])  # the script's own process runs no operator
        assert len(reports) == (2 if script == "profiled_llm.py" else 1)
        told = "".join(path.read_text() for path in job.run.glob("nodes/*/events/*.jsonl"))
        rows = [json.loads(line) for line in told.splitlines()]
        assert [row["step"] for row in rows if row["event"] == "step"] == [1, 2, 3, 4, 5, 6]  # one leads


def engine_traces(folder: Path) -> list[Path]:
    return sorted((folder / "own").glob("*.pt.trace.json.gz"), key=lambda path: path.stat().st_mtime_ns)


def vllm(folder: Path, script: str, *before: str, **env: str) -> list[str]:
    """Run the script in the environment that verl has vLLM in; a line for each step's tokens."""
    folder.mkdir()
    run = runs.trainer_run("verl", work=folder)
    argv = vllm_script(folder, script)
    said = finished(run, argv, import_path(), before, {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", **env})
    return [line for line in said.splitlines() if line.startswith("tokens of step")]


def vllm_script(folder: Path, name: str) -> list[str]:
    """The script's command; vLLM writes its traces into `own` of the folder."""
    installed, script = environments.ensure("verl"), environments.HERE / "vllm_cpu" / name
    return [str(installed.python), "-P", str(script), str(installed.data / "model"), str(folder / "own")]


@pytest.mark.long
def test_verls_own_torch_tool_beside_our_window(tmp_path: Path):
    for attempt in range(TIMES):
        folder = tmp_path / f"job-{attempt}"
        job = LocalJob.take(
            "verl",
            folder,
            3,
            RUN_S,
            overrides=(
                "global_profiler.tool=torch",
                "global_profiler.steps=[2]",
                f"global_profiler.save_path={folder / 'own'}",
                "actor_rollout_ref.actor.profiler.enable=True",
                "actor_rollout_ref.actor.profiler.all_ranks=True",
            ),
            GPUS_PER_NODE="1",
            RLPROF_READY_SECONDS="500",
            RLPROF_BACKEND="torch",
            RLPROF_STEPS="2",
            RLPROF_WORKERS="actor",
        )
        assert sorted(runs.step_times("verl", job.output)) == [1, 2, 3]
        [own] = (folder / "own").rglob("*.json.gz")
        names = {event.get("name", "") for event in trace(own)}
        assert {"actor_compute_log_prob", "actor_update"} <= names, sorted(names)[:60]
        assert any("Backward" in name for name in names)
        [capture] = Manifest.load(job.run).captures
        print(attempt, capture.id, capture.state, capture.reason, flush=True)
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
