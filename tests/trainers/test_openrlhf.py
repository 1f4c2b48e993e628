"""OpenRLHF's own loop and modules, with our adapter: its models need a GPU, so they only take time here.

The oracle of times is what OpenRLHF logs of each step (`timing/*`).
"""

from __future__ import annotations

import ast
import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from rlprof_ops.analyze.phase_names import canonical
from rlprof_ops.job.knobs import python_path
from rlprof_ops.runtime.process.actor_labels import NewActor
from rlprof_ops.trainers.openrlhf import adapter
from tests.trainers import environments

pytestmark = [pytest.mark.trainers, pytest.mark.timeout(600)]
LOOP = Path(__file__).parent / "openrlhf" / "loop.py"
# What OpenRLHF calls it in its log, by our phase.
TIMED = {
    "generation": "generation",
    "make_experience": "make_experience",
    "ppo_train": "ppo_train",
    "broadcast_to_vllm": "broadcast",
}
STEPS = [1, 2, 3]


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
