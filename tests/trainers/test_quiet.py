"""Real trainers in which one rank takes its time, while the others wait for it in a collective: the recorder
calls none of it a hang. A step of many times the median, and a checkpoint, each longer than a hang takes to
be said. RLPROF_TEST_TIMES=20 for as many runs of each, RLPROF_TEST_CHECKPOINTS=20 for so many of them
in each run of verl and NeMo RL.
"""

from __future__ import annotations

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from rlprof_ops.job.knobs import import_path
from rlprof_ops.recorder.head_recorder import FINDINGS, FOLDER, read_rows
from tests.recorder.recorded_command import recorded
from tests.trainers import environments, runs
from tests.trainers.local_job import LocalJob
from tests.waits import wait_until

RUN_S = 1500
TIMES = int(os.environ.get("RLPROF_TEST_TIMES", "1"))
CHECKPOINTS = int(os.environ.get("RLPROF_TEST_CHECKPOINTS", "1"))
RUN_S += 200 * (CHECKPOINTS - 1)
TIMEOUT_S = 60.0  # of the group: a hang is said after 15 s
STEP_S, SAVE_S = 20.0, 17.0
SLOW_SAVE_S = 40.0
DEMO_SLOW_S = 20.0  # below the 30 s after which a rank that only sleeps is a hang
AT_ONCE = 3
pytestmark = [pytest.mark.trainers, pytest.mark.long, pytest.mark.timeout(TIMES * RUN_S + 100)]


def waits(found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """What was said of waiting; none of it a hang. A `long_wait` is as long as it says."""
    told = [each for each in found if each["kind"] in ("hang", "long_wait")]
    assert [each["text"] for each in told if each["kind"] == "hang"] == []
    assert all(each["evidence"]["still_s"] >= 0.45 * each["evidence"]["timeout_s"] for each in told), told
    return told


def demo(folder: Path) -> str:
    """Run the demo as a job of this machine; its last step is some forty times the others."""
    env = {name: text for name, text in os.environ.items() if not name.startswith(("SLURM", "RLPROF"))}
    slow = ["--slow-rank", "1", "--slow-from", "12", "--slow-ms", str(int(1000 * DEMO_SLOW_S))]
    done = subprocess.run(
        [sys.executable, "-m", "rlprof_ops", "demo", "--steps", "12", "--output", str(folder), "--", *slow],
        env={**env, "PYTHONPATH": import_path(), "RLPROF_REPORT_SECONDS": "0"},
        capture_output=True,
        text=True,
        timeout=RUN_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    return done.stdout


def test_the_demo(tmp_path: Path):
    folders = [tmp_path / str(time) for time in range(TIMES)]
    with ThreadPoolExecutor(AT_ONCE) as pool:
        for folder, said in zip(folders, pool.map(demo, folders), strict=True):
            [run] = folder.glob("*-logs")
            findings = run / FOLDER / FINDINGS
            assert findings.parent.is_dir(), said
            found = read_rows(findings, ("kind", "text"))
            assert waits(found) == []
            print(f"{folder.name}:", [each["text"] for each in found])


def test_trl_with_two_ranks(tmp_path: Path):
    if why := environments.lacking("trl"):
        pytest.skip(why)
    for time in range(TIMES):
        folder = tmp_path / str(time)
        folder.mkdir()
        run = runs.trainer_run(
            "trl", work=folder, steps=14, overrides=['save_strategy="steps"', "save_steps=10"]
        )
        script = str(environments.HERE / "trl/grpo.py")
        place = run.argv.index(script)
        launch = [*run.argv[:place], "-m", "torch.distributed.run", "--nproc-per-node=2", "--standalone"]
        slow = [script.replace("grpo.py", "quiet_grpo.py"), str(STEP_S), str(SAVE_S), str(TIMEOUT_S)]
        with recorded(folder, [*launch, *slow, *run.argv[place + 1 :]], run.environment()) as trl:
            wait_until(lambda: trl.process.poll() is not None, RUN_S, trl.said, pause_s=0.5)
            assert trl.process.returncode == 0, trl.said()
            steps = runs.step_times("trl", trl.output())
            told = [each["text"] for each in waits(trl.found)]
            print(f"run {time}: {len(steps)} steps, the longest {max(steps.values()):.1f} s;", told)
            assert max(steps.values()) >= STEP_S, steps


EVERY_STEPS = 7  # ends with a long checkpoint; what is usual is known by the first one
# The call in which rank 0 is slow while the other waits, and what makes two ranks and checkpoints.
LONG_CHECKPOINTS: dict[str, tuple[str, str, list[str]]] = {
    "verl": (
        "torch.serialization:save",
        "model_world_size",
        [
            "trainer.n_gpus_per_node=2",
            f"trainer.save_freq={EVERY_STEPS}",
            "trainer.default_local_dir={checkpoints}",
            "trainer.max_actor_ckpt_to_keep=1",
            "trainer.total_epochs=1000",
            "actor_rollout_ref.actor.ppo_epochs=4",
        ],
    ),
    "nemo_rl": (
        "torch.distributed.checkpoint.filesystem:_FileSystemWriter.write_data",
        "",
        [
            "cluster.gpus_per_node=2",
            "checkpointing.enabled=true",
            "checkpointing.checkpoint_dir={checkpoints}",
            "checkpointing.metric_name=null",
            "checkpointing.model_save_format=null",
            "checkpointing.keep_top_k=1",
            f"checkpointing.save_period={EVERY_STEPS}",
            "checkpointing.save_optimizer=false",
            "grpo.max_num_epochs=1000",
        ],
    ),
}


@pytest.mark.parametrize("time", range(TIMES))
@pytest.mark.parametrize("trainer", LONG_CHECKPOINTS)
def test_long_checkpoints_of_two_ranks(tmp_path: Path, trainer: str, time: int):
    """Where step times are known, a hang is said after 30 s, for the group's timeout is half an hour."""
    if why := environments.lacking(trainer):
        pytest.skip(why)
    (tmp_path / "hook").mkdir()
    hook = (environments.HERE / "slow_save.py").read_text()
    (tmp_path / "hook/sitecustomize.py").write_text(hook)
    steps = EVERY_STEPS * CHECKPOINTS
    function, name, overrides = LONG_CHECKPOINTS[trainer]
    job = LocalJob.take(
        trainer,
        tmp_path / "job",
        steps,
        RUN_S,
        overrides=[each.format(checkpoints=tmp_path / "checkpoints") for each in overrides],
        env={
            "PYTHONPATH": str(tmp_path / "hook"),
            "SLOW_SAVE_S": str(SLOW_SAVE_S),
            "SLOW_SAVE_FUNCTION": function,
            "SLOW_SAVE_NAME": name,
            "SLOW_SAVE_PATH": str(tmp_path / "more_weights"),
        },
        last_words="Max number of steps has been reached",
        GPUS_PER_NODE="2",
    )
    slow = job.output.count("saved slowly: ")
    took = sorted(seconds for _, seconds in runs.steps_of(trainer, job.output))
    told = [each["text"] for each in waits(read_rows(job.run / FOLDER / FINDINGS, ("kind", "text")))]
    median = took[len(took) // 2]
    long = sum(each >= max(SLOW_SAVE_S, 5 * median) for each in took)
    words = f"{len(took)} steps, median {median:.1f} s, {slow} slow checkpoints, {long} long steps"
    print(f"{trainer}, run {time}: {words};", told)
    assert slow >= CHECKPOINTS and long >= CHECKPOINTS and len(took) == steps, took
