"""TRL's GRPOTrainer, its script unchanged: under ray.sub with a request file, and under `srun rlprof wrap`
with variables.

The trainer's own timers are the oracle: a `sitecustomize` of this file, which ours has to chain, prints each
duration that TRL measures (`ProfilingContext`, perf_counter).
"""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.analyze.as_data import answer_of
from tests.trainers import environments, runs
from tests.whole_job.jobs import HOME, Job

pytestmark = [
    pytest.mark.trainers,
    pytest.mark.slurm,
    pytest.mark.nsys,
    pytest.mark.timeout(900),
]

ORACLE = """
import sys

class Oracle:
    def find_spec(self, name, path=None, target=None):
        if name != "trl.extras.profiling":
            return None
        others = (finder.find_spec(name, path, target) for finder in sys.meta_path if finder is not self)
        spec = next(found for found in others if found)
        run = spec.loader.exec_module
        def exec_module(module):
            run(module)
            def tell(context, seconds):
                name = context.name.partition(".")[2]
                print(f"\\ntimer {name} after {context.step} {seconds:.9f}", flush=True)
            module.ProfilingContext._log_metrics = tell
        spec.loader.exec_module = exec_module
        return spec

sys.meta_path.insert(0, Oracle())
"""
REQUEST = """
captures:
  - {backend: nsight, workers: ["*"], steps: "2:4", options: {t: nvtx}}
  - {backend: torch, workers: ["trainer"], steps: "2:4"}
  - {backend: memory, workers: ["trainer"], steps: "2:4", options: {host: true}}
"""
# Run in TRL's environment: what the run left in its trackers, by their own parsers.
TRACKED = """
import glob, json, struct, sys
import mlflow
from wandb.proto.wandb_internal_pb2 import Record

def records(data):  # a log of LevelDB's: blocks of 32 KiB, records in parts
    place, whole = 7, b""
    while place + 7 <= len(data):
        left = 32768 - place % 32768
        if left < 7:
            place += left
            continue
        _, size, part = struct.unpack_from("<IHB", data, place)
        whole, place = whole + data[place + 7 : place + 7 + size], place + 7 + size
        if part in (1, 4):
            yield Record.FromString(whole)
            whole = b""

[log] = glob.glob("wandb/offline-run-*/*.wandb")
rows = [{"/".join(item.nested_key) or item.key: json.loads(item.value_json) for item in record.history.item}
        for record in records(open(log, "rb").read()) if record.HasField("history")]
client = mlflow.MlflowClient()
[run] = [run for each in client.search_experiments() for run in client.search_runs(each.experiment_id)]
metrics = {name: [(metric.step, metric.value) for metric in client.get_metric_history(run.info.run_id, name)]
           for name in run.data.metrics}
print(json.dumps({"rows": rows, "metrics": metrics}))
"""
TIMED = {"transformers.generate": "generation", "_calculate_rewards": "reward"}


def trackers(folder: Path) -> dict[str, str]:
    """What a user sets for W&B and MLflow without a server."""
    return {
        "WANDB_MODE": "offline",
        "WANDB_DIR": str(folder),
        "MLFLOW_TRACKING_URI": f"file:{folder / 'mlruns'}",
        "MLFLOW_ALLOW_FILE_STORE": "true",
    }


def command(folder: Path, steps: int = 4) -> str:
    """The script as its user runs it, with the oracle behind whatever PYTHONPATH the job gives."""
    if why := environments.lacking("trl"):
        pytest.skip(why)
    (folder / "oracle").mkdir(exist_ok=True)
    (folder / "oracle" / "sitecustomize.py").write_text(ORACLE)
    run = runs.trainer_run(
        "trl", work=folder, steps=steps, env=trackers(folder), overrides=['report_to=["wandb", "mlflow"]']
    )
    return f"export PYTHONPATH=${{PYTHONPATH-}}:{shlex.quote(str(folder / 'oracle'))}\n{run.shell()}"


def own_timers(output: str) -> dict[tuple[int, str], float]:
    """Seconds by step and phase, as TRL measured them itself."""
    found: dict[tuple[int, str], float] = {}
    for name, after, seconds in re.findall(r"^timer (\S+) after (\d+) ([\d.]+)$", output, re.MULTILINE):
        if name in TIMED:
            key = int(after) + 1, TIMED[name]
            found[key] = found.get(key, 0.0) + float(seconds)
    return found


def phases(answer: dict[str, Any]) -> dict[tuple[int, str], float]:
    """Seconds by step and phase in the report."""
    names = answer["phase_names"]
    return {
        (row["step"], names[phase["phase"]]): phase["duration_ns"] / 1e9
        for row in answer["anatomy"]
        for phase in row["phases"]
    }


def close(mine: float, own: float) -> bool:
    """Within 2 %, or what one turn of another process on this processor takes."""
    return abs(mine - own) <= max(0.02 * own, 0.006)


@pytest.fixture(scope="module")
def job(slurm_sandbox: Any) -> Job:
    slurm = slurm_sandbox
    slurm.heal()
    folder = slurm.shared / "trl"
    folder.mkdir(exist_ok=True)
    (folder / "profile.yaml").write_text(REQUEST)
    made = Job.submit(
        slurm,
        nodes=1,
        COMMAND=command(folder),
        RLPROF_REQUEST=str(folder / "profile.yaml"),
        RLPROF_TRACKERS="1",
    )
    assert made.wait(500).exit_code == 0, made.output
    return made


@pytest.mark.quick
def test_windows_of_each_backend_are_home_by_name(job: Job):
    backends = ("nsight", "torch", "memory")
    assert job.states() == {f"{backend}/trainer/rank0/step2-3": "ok" for backend in backends}, job.manifest
    assert re.match(
        r"trl [0-9.]+: steps 1 to \d+; phases .*generation.*; roles .*trainer", job.manifest.heard
    )


@pytest.mark.quick
def test_the_report_shows_the_steps_and_phases_that_trl_timed(job: Job):
    answer = answer_of(job.run, quiet=True)
    assert [step["step"] for step in answer["steps"]] == [2, 3]
    assert {"generation", "reward", "train"} <= set(answer["phase_names"])
    own, mine = own_timers((job.run / "logs" / "driver.log").read_text()), phases(answer)
    compared = {key: (mine.get(key), own[key]) for key in own if key[0] in (2, 3)}
    assert len(compared) == 4, compared
    # Our range is around TRL's timer: never shorter, and longer only by what a busy machine puts in between.
    assert all(found and found >= timed for found, timed in compared.values()), compared
    for phase in ("generation", "reward"):
        pairs = [pair for (_, name), pair in compared.items() if name == phase]
        assert any(found and close(found, timed) for found, timed in pairs), compared
    for step in (2, 3):
        total = sum(seconds for (number, _), seconds in mine.items() if number == step)
        assert total <= next(row["duration_ns"] for row in answer["anatomy"] if row["step"] == step) / 1e9


def test_reports_are_final_while_training_goes_on(job: Job):
    events = [
        json.loads(line)
        for path in job.run.glob("nodes/*/events/*.jsonl")
        for line in path.read_text().splitlines()
    ]
    ended = next(event["t_ns"] for event in events if event["event"] == "ended")
    closed = [event["t_ns"] for event in events if event["event"] == "closed"]
    assert len(closed) == 3 and all(moment < ended for moment in closed)


def test_the_trainers_own_trackers_have_the_steps_too(job: Job, slurm_sandbox: Any):
    folder = slurm_sandbox.shared / "trl"
    python = environments.ensure("trl").python
    done = subprocess.run(
        [python, "-P", "-c", TRACKED],
        cwd=folder,
        env={**os.environ, **trackers(folder)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout.splitlines()[-1])
    own = runs.step_times("trl", (job.run / "logs" / "driver.log").read_text())
    rows = [row for row in told["rows"] if "rlprof/step" in row]
    # In the trainer's own rows, of which there are not more.
    assert [(row["_step"], row["rlprof/step"], row["train/global_step"]) for row in rows] == [
        (step - 1, step, step) for step in (1, 2, 3, 4)
    ], told["rows"]
    for seconds in ([row["rlprof/step_s"] for row in rows], [s for _, s in told["metrics"]["rlprof/step_s"]]):
        # Around the steps as the script's own callback times them.
        assert all(0 <= ours - its < 0.5 for ours, its in zip(seconds, own.values(), strict=True)), (
            seconds,
            own,
        )
    assert [step for step, _ in told["metrics"]["rlprof/step_s"]] == [1, 2, 3, 4]
    for phase in ("generation", "reward", "train"):
        values = [value for _, value in told["metrics"][f"rlprof/phase/{phase}_s"]]
        assert values == pytest.approx([row[f"rlprof/phase/{phase}_s"] for row in rows])


def test_srun_wrap_needs_nothing_else(slurm: Any):
    folder = slurm.shared / "trl wrapped"
    folder.mkdir(exist_ok=True)
    run = runs.trainer_run("trl", work=folder, steps=4)
    script = folder / "train.sbatch"
    wrap = f"{shlex.quote(sys.executable)} -m rlprof_ops wrap --"
    script.write_text(
        f"#!/bin/bash\nexport PYTHONPATH={shlex.quote(str(HOME / 'python'))}\n"
        f"cd {shlex.quote(str(folder))}\n"
        f"exec srun env {shlex.join(f'{k}={v}' for k, v in run.env.items())} {wrap} {shlex.join(run.argv)}\n"
    )
    asked = {"RLPROF_STEPS": "2:4", "RLPROF_WORKERS": "*", "RLPROF_OPTIONS": '{"t": "nvtx"}'}
    number = slurm.sbatch(["-N1", script], env=asked, cwd=folder)
    state = slurm.wait(number, timeout=500)
    output = (folder / f"slurm-{number}.out").read_text()
    assert state.exit_code == 0, output
    [report] = folder.rglob("trainer_rank0_step2-3_*.nsys-rep")
    assert {step["step"] for step in answer_of(report, quiet=True)["steps"]} == {2, 3}
    assert list(runs.step_times("trl", output)) == [1, 2, 3, 4]
