"""Real trainers and servers that hang, one process of them stopped (SIGSTOP): the recorder says which one.

The rows of the table in docs/hang.md are printed (`pytest -s`).
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.trainers import environments, runs
from tests.trainers.local_job import LocalJob

RUN_S = 1100
WITHIN_S = 60  # said after 30 s: the groups' timeouts are gloo's, half an hour
STEP = 8  # the one in which it is stopped: what is usual is known by then
pytestmark = [pytest.mark.trainers, pytest.mark.long, pytest.mark.timeout(RUN_S + 100)]
STOPPED = environments.HERE / "stop_one.py"


def told(job: LocalJob) -> dict[str, Any]:
    [line] = [line for line in job.output.splitlines() if "stopped: {" in line]
    row: dict[str, Any] = json.loads(line.partition("stopped: ")[2])
    for finding in row["found"]:
        print(f"| after {row['seconds']:.0f} s | {finding['kind']} | {finding['text']} |")
    return row


def hang(trainer: str, folder: Path, whom: str, argv: Sequence[str], **more: Any) -> dict[str, Any]:
    """What was found after `whom` was stopped, of a job that runs `argv`."""
    python, steps = str(environments.ensure(trainer).python), 400
    stops = [python, "-P", str(STOPPED), whom, str(STEP), *argv]
    return told(LocalJob.take(trainer, folder / "job", steps, RUN_S, argv=stops, **more))


def test_trl_with_one_rank_stopped(tmp_path: Path):
    if why := environments.lacking("trl"):
        pytest.skip(why)
    installed = environments.ensure("trl")
    argv = [str(installed.python), "-P", "-m", "torch.distributed.run", "--nproc-per-node=2", "--standalone"]
    argv += [str(environments.HERE / "trl/grpo.py"), str(installed.data / "model"), "100000"]
    row = hang("trl", tmp_path, "rank 1", argv)
    [finding] = row["found"]
    who = rf"rank 1 \((\w+, )?node \S+, pid {row['pid']}\) is stopped \(SIGSTOP\): "
    assert re.fullmatch(who + r"rank 0 has waited [\d.]+ s in \w+ #\d+ of \S+", finding["text"]), finding
    assert finding["kind"] == "hang" and row["seconds"] < WITHIN_S, row


VERL = (
    "actor_rollout_ref.actor.ppo_epochs=4",
    "trainer.total_epochs=1000",
)
FIGURES = "actor_rollout_ref.rollout.disable_log_stats=False"  # verl has its engines' figures off


def verl(folder: Path, whom: str, gpus: int, *overrides: str) -> dict[str, Any]:
    if why := environments.lacking("verl"):
        pytest.skip(why)
    given = [*VERL, f"trainer.n_gpus_per_node={gpus}", *overrides]
    work = folder / "work"
    work.mkdir()
    run = runs.trainer_run("verl", work=work, steps=400, ray_address=runs.FROM_ENVIRONMENT, overrides=given)
    return hang("verl", folder, whom, run.argv, GPUS_PER_NODE=str(gpus))


def test_verl_with_one_of_two_ranks_stopped(tmp_path: Path):
    row = verl(tmp_path, "rank 1", 2)
    [finding] = row["found"]
    who = rf"rank 1 \((\w+, )?WorkerDict(\.\w+)?, node \S+, pid {row['pid']}\) is stopped \(SIGSTOP\): "
    assert re.fullmatch(who + r"rank 0 has waited [\d.]+ s in \w+ #\d+ of .*", finding["text"]), finding
    assert finding["kind"] == "hang" and row["seconds"] < WITHIN_S, row


ENGINE = (
    r"the driver waits (?:for generation of|in (?!generation)(?P<phase>\w+) for) {} \(node \S+, pid \d+\),"
    r" whose engine has .*made no token for [\d.]+ s: its process {} is stopped \(SIGSTOP\);"
    r" the step clock stands still for [\d.]+ s at step \d+(, in (?P<open>{}))?"
)


def engine_hung(row: dict[str, Any], phases: str) -> None:
    """The one finding names the engine, in the phase that is open."""
    [finding] = row["found"]
    said = re.fullmatch(ENGINE.format(r"\S+", row["pid"], phases), finding["text"])
    assert said and (said["phase"] or "generation") == (said["open"] or "generation"), finding
    assert finding["kind"] == "hang" and row["seconds"] < WITHIN_S, row


@pytest.mark.parametrize("figures", ["with its figures", "as verl has it"])
def test_verl_whose_engine_is_stopped(tmp_path: Path, figures: str):
    row = verl(tmp_path, "engine", 1, *([FIGURES] if figures == "with its figures" else []))
    engine_hung(row, r"\w+")


def test_a_vllm_server_whose_engine_is_stopped(tmp_path: Path):
    if why := environments.lacking("verl"):
        pytest.skip(why)
    installed, script = environments.ensure("verl"), environments.HERE / "vllm_cpu/endless_steps.py"
    row = hang(
        "verl", tmp_path, "engine", [str(installed.python), "-P", str(script), str(installed.data / "model")]
    )
    engine_hung(row, "generation")
