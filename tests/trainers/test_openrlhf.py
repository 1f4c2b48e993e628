"""OpenRLHF's own command line, loop and modules, with our adapter: its models and engines need a GPU, so they
only take time here.

The oracle of times is what OpenRLHF logs of each step (`timing/*`).
"""

from __future__ import annotations

import ast
import json
import re
import shutil
import subprocess
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from rlprof_ops.analyze.phase_names import canonical
from rlprof_ops.job.knobs import python_path
from rlprof_ops.runtime.process.actor_labels import NewActor
from rlprof_ops.trainers.openrlhf import adapter
from tests.analyze.as_data import answer_of
from tests.trainers import environments, runs
from tests.trainers.local_job import LocalJob
from tests.trainers.own_log import agree, heard, hold_reports

pytestmark = [pytest.mark.trainers, pytest.mark.timeout(environments.INSTALL_DEADLINE_S + 900)]
LOOP = Path(__file__).parent / "openrlhf" / "loop.py"
JOB = LOOP.with_name("job.py")
# What OpenRLHF calls it in its log, by our phase.
TIMED = {
    "generation": "generation",
    "make_experience": "make_experience",
    "ppo_train": "ppo_train",
    "broadcast_to_vllm": "broadcast",
}
STEPS = [1, 2, 3]
TRAINED, CAPTURED = 8, 2
RANKS = {"actor": 2, "controller": 1, "ref": 1, "rollout": 2}
NEED_GPU = ("flash_attn", "vllm", "deepspeed", "bitsandbytes", "loralib")
EMPTY = ",".join((*NEED_GPU, "torchmetrics", "optree", "pylatexenc", "PIL"))


def package() -> Path:
    [found] = environments.ensure("openrlhf").folder.glob("venv/lib/python3*/site-packages")
    return found


def run_loop(folder: Path, path: Path) -> tuple[str, str, list[dict[str, Any]]]:
    """The loop with OpenRLHF in `path`, where torch, vLLM and Ray are: its output, and our events."""
    for name in ("openrlhf", "verl"):
        if why := environments.lacking(name):
            pytest.skip(why)
    node = folder / "node"
    node.mkdir()
    done = subprocess.run(
        [str(environments.ensure("verl").python), "-P", "-W", "ignore", str(LOOP)],
        env={
            "PATH": "/usr/bin:/bin",
            "PYTHONPATH": python_path(str(path)),
            "RLPROF_NODE_DIR": str(node),
            "RLPROF_STEPS": "2",
            "RLPROF_WORKERS": "actor",
            "HF_HUB_OFFLINE": "1",
        },
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    rows = [json.loads(line) for path in node.rglob("*.jsonl") for line in path.open()]
    return done.stdout, done.stderr, rows


def own_times(text: str) -> dict[int, dict[str, float]]:
    """`timing/*` of each step, as OpenRLHF logs it."""
    found = re.findall(r"Global step (\d+): (\{.*?\})", text)
    return {
        int(step): {key[7:]: value for key, value in ast.literal_eval(said).items() if key[:7] == "timing/"}
        for step, said in found
    }


def test_steps_and_phases_take_what_openrlhf_logs(tmp_path: Path):
    stdout, stderr, rows = run_loop(tmp_path, package())
    told, own = {row["step"]: row for row in rows if row["event"] == "step"}, own_times(stdout + stderr)
    assert sorted(told) == sorted(own) == STEPS, stderr[-4000:]
    assert [name for name, *_ in told[2]["phases"]] == ["generation", *TIMED]  # one batch is filtered away
    for number, step in told.items():
        mine = {name: (end - begin) / 1e9 for name, begin, end, _ in step["phases"]}  # the last of a name
        compared = {name: (mine[name], own[number][timed]) for name, timed in TIMED.items()}
        assert all(abs(a - b) <= max(0.02 * b, 0.02) for a, b in compared.values()), (number, compared)
    assert stdout.endswith("followed [True, True] False\n")


@pytest.mark.long
@pytest.mark.ray
@pytest.mark.nsys
def test_a_job_has_openrlhfs_steps_phases_roles_ranks_and_losses(tmp_path: Path):
    for name in ("openrlhf", "skyrl"):  # its modules are run in SkyRL's environment
        if why := environments.lacking(name):
            pytest.skip(why)
    env = {"PYTHONPATH": str(package()), "EMPTY_PACKAGES": EMPTY}
    run = runs.trainer_run("skyrl", work=tmp_path, env=env)
    argv = [*run.argv[:2], str(JOB), str(TRAINED)]
    knobs = {"RLPROF_STEPS": str(CAPTURED), "RLPROF_WORKERS": "*", "RLPROF_OPTIONS": '{"t": "nvtx"}'}
    gpus = str(RANKS["actor"] + RANKS["ref"] + RANKS["rollout"])

    job = LocalJob.take(
        "skyrl", tmp_path / "job", TRAINED, 700, env=env, argv=argv, GPUS_PER_NODE=gpus, **knobs
    )

    own, told = own_times(job.said()), heard(job.run)
    assert sorted(told) == sorted(own) == list(range(1, TRAINED + 1)), job.output[-6000:]
    times: dict[tuple[int, str], tuple[float, float]] = {}
    for number, step in told.items():
        mine = {name: (end - begin) / 1e9 for name, begin, end, _ in step["phases"]}
        times |= {(number, name): (mine[name], own[number][timed]) for name, timed in TIMED.items()}
    ours, theirs = times.pop((CAPTURED, "generation"))  # in theirs the windows open
    assert ours <= theirs
    agree(times)
    hold_reports(job, RANKS)
    hold_page(answer_of(job.run, jobs=1), mine_of(told[CAPTURED]))

    alone = subprocess.run(
        [*run.argv[:3], "--num-gpus", gpus, "--", *argv],
        env=run.environment(),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    learnt = divergences(job.said())
    assert learnt == pytest.approx(divergences(alone.stdout + alone.stderr), rel=1e-3, abs=1e-5)
    assert len(set(learnt)) == len(learnt) == TRAINED, learnt


def mine_of(step: dict[str, Any]) -> dict[str, float]:
    """Nanoseconds of each phase of the controller."""
    return {canonical(name): end - begin for name, begin, end, _ in step["phases"]}


def divergences(text: str) -> list[float]:
    """From the reference model, as OpenRLHF logs them of each step: what the training has changed."""
    return [float(kl) for kl in re.findall(r"Global step \d+: .*'kl': ([^,]+),", text)]


def hold_page(answer: dict[str, Any], controller: dict[str, float]) -> None:
    """Both ranks of the actor are there and named, and the chain of work has the training in its length."""
    counted = {row["worker"]: (row["ranks"], row["world"]) for row in answer["coverage"]["ranks"]}
    assert counted == {worker: (ranks, ranks) for worker, ranks in RANKS.items()}
    read = Counter(rank["worker"] for rank in answer["ranks"])
    assert read == RANKS
    said = [f"{found['text']} {found['advice']}" for found in answer["findings"]]
    assert not [text for text in said if "not captured" in text or "controller too" in text], said
    [chain] = [chain for chain in answer["critical_path"]["steps"] if chain["step"] == CAPTURED]
    links = [(link["worker"], link["phase"], link["duration_ns"]) for link in chain["links"]]
    took = sum(ns for worker, phase, ns in links if phase == "train")
    assert took >= 0.8 * controller["train"], links
    phases = {(row["worker"], row["phase"]): row["max_ns"] for row in answer["phases"]}
    assert all(ns <= 1.05 * phases[worker, phase] for worker, phase, ns in links), (links, phases)


def test_renamed_functions_are_a_line_each_and_openrlhf_trains(tmp_path: Path):
    shutil.copytree(package() / "openrlhf", tmp_path / "lib" / "openrlhf")
    renamed = {"train_step": "one_step", "make_experience_batch": "make_experiences"}
    for path in (tmp_path / "lib").rglob("*.py"):
        text = changed = path.read_text()
        for old, new in renamed.items():
            changed = re.sub(rf"\b{old}\b", new, changed)
        if changed != text:
            path.write_text(changed)
    _, stderr, rows = run_loop(tmp_path, tmp_path / "lib")
    assert sorted(own_times(stderr + _)) == STEPS
    lines = [line for line in stderr.splitlines() if "is left as it is" in line]
    assert [any(f"has no {old}" in line for line in lines) for old in renamed] == [True, True], lines
    assert [row["event"] for row in rows] == ["adapter_unknown"] * 2


def test_its_actors_have_their_roles():
    def role(name: str, module: str) -> Any:
        return adapter.role_of(NewActor(name, f"openrlhf.trainer.{module}", "", {}))

    assert (
        role("PPOTrainer", "ppo_trainer")
        == role("TrainingActor", "ppo_trainer_async")
        == ("controller", None)
    )
    assert role("PolicyModelActor", "ray.ppo_actor") == ("actor", None)
    assert role("RolloutRayActor", "ray.vllm_engine") == ("rollout", None)
    assert adapter.role_of(NewActor("PPOTrainer", "another", "", {})) is None
    text = "".join(path.read_text() for path in (package() / "openrlhf" / "trainer").rglob("*.py"))
    earlier = {"LLMRayActor"}  # tests/trainers/test_releases.py
    assert all(
        re.search(rf"^class {name}\b", text, re.MULTILINE) for name in adapter._CLASSES.keys() - earlier
    )
    assert [canonical(name) for name in TIMED] == ["generation", "make_experience", "train", "weight_sync"]
