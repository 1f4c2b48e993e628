"""slime's own `train.py` and `train_async.py` with our adapter: Megatron and SGLang only take time.

The oracle of times is what slime logs of each step (`perf/*`).
"""

from __future__ import annotations

import ast
import re
import subprocess
from collections import defaultdict
from pathlib import Path
from types import SimpleNamespace

import pytest

from rlprof_ops.analyze.phase_names import canonical
from rlprof_ops.collect.harvest.manifest import Manifest
from rlprof_ops.runtime.process.actor_labels import NOBODY, NewActor
from rlprof_ops.trainers import slime
from rlprof_ops.trainers.slime import adapter
from tests import upstream
from tests.trainers import environments, runs
from tests.trainers.local_job import LocalJob
from tests.trainers.own_log import agree, heard

pytestmark = [pytest.mark.trainers, pytest.mark.timeout(environments.INSTALL_DEADLINE_S + 600)]
LOOP = Path(__file__).parent / "slime" / "loop.py"
STEPS = 4
NEED_GPU = ("megatron", "sglang", "sglang_router", "torch_memory_saver", "transformer_engine", "flash_attn")
EMPTY = ",".join((*NEED_GPU, "mbridge", "slime_plugins", "wandb"))


def logged(output: str) -> dict[int, dict[str, float]]:
    """`perf/*_time` of each step, counted from 1."""
    found = re.findall(r"perf (\d+): (\{.*?\})", output)
    return {
        int(rollout) + 1: {
            key[5:-5]: took for key, took in ast.literal_eval(said).items() if key.endswith("_time")
        }
        for rollout, said in found
    }


@pytest.mark.long
@pytest.mark.ray
@pytest.mark.nsys
@pytest.mark.parametrize("which", ["train", "train_async"])
def test_a_job_has_slimes_steps_phases_roles_ranks_and_losses(which: str, tmp_path: Path):
    if why := environments.lacking("skyrl"):
        pytest.skip(why)  # slime's modules are run in SkyRL's environment
    env = {"PYTHONPATH": str(upstream.tree("slime")), "EMPTY_PACKAGES": EMPTY}
    run = runs.trainer_run("skyrl", work=tmp_path, env=env)
    argv = [*run.argv[:2], str(LOOP), str(STEPS), which]
    knobs = {"RLPROF_STEPS": "3", "RLPROF_WORKERS": "*", "RLPROF_OPTIONS": '{"t": "nvtx"}'}

    job = LocalJob.take("skyrl", tmp_path / "job", STEPS, 900, env=env, argv=argv, **knobs)

    own, told = logged(job.output), heard(job.run, "actor")
    assert sorted(told) == sorted(own) == list(range(1, STEPS + 1)), job.output[-6000:]
    times: dict[tuple[int, str], tuple[float, float]] = {}
    for number, step in told.items():
        mine: dict[str, float] = defaultdict(float)
        for name, begin, end, _ in step["phases"]:
            mine[name] += (end - begin) / 1e9
        mine["step"] = (step["end_ns"] - step["begin_ns"]) / 1e9
        assert set(mine) == set(own[number]), number
        times |= {(number, name): (mine[name], took) for name, took in own[number].items()}
    agree(times)
    manifest = Manifest.load(job.run)
    assert manifest.world == {"actor": 2, "rollout": 2, "rollout_manager": 1}
    # The job may end while the first actor's own window is being written: then its report is a recovered one.
    # On a busy machine nsys itself fails to start a program now and then.
    lost = [
        each
        for each in manifest.captures
        if each.state not in ("ok", "recovered") and "before the program began" not in each.reason
    ]
    assert lost == [] and len(manifest.captures) == 5, job.output[-4000:]

    alone = subprocess.run(
        [*run.argv[:4], *argv],
        env=run.environment(),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=600,
    )
    losses = re.findall(r"loss \d+: \S+", job.output)
    assert sorted(losses) == sorted(re.findall(r"loss \d+: \S+", alone.stdout)) and len(losses) == STEPS


@pytest.mark.parametrize(
    "given, answered, made_again, first",
    [(0, 1, 0, 1), (5, 1, 0, 6), (None, 8, 0, 9), (0, 8, 3, 9)],
    ids=["a new run", "the user's own beginning", "a checkpoint of Megatron's", "--release-train"],
)
def test_the_first_step_is_the_rollout_with_which_the_driver_begins(
    monkeypatch: pytest.MonkeyPatch, given: int | None, answered: int, made_again: int, first: int
):
    """slime takes what `init` answers only where `start_rollout_id` is None (ray/placement_group.py)."""
    begun: list[tuple[int, int]] = []
    monkeypatch.setattr(adapter._STATE, "wait", lambda *steps: begun.append(steps))
    args = SimpleNamespace(
        start_rollout_id=given, num_rollout=12, use_critic=False, update_weight_start_version=made_again
    )
    adapter._init_ended(answered, (SimpleNamespace(_rank=0, _world_size=1), args, "actor"), {})
    assert begun == [(first, 12)]


def test_a_training_actor_has_the_role_and_the_place_of_its_group(monkeypatch: pytest.MonkeyPatch):
    module = "slime.backends.megatron_utils.actor"
    theirs = type("TrainRayActor", (), {"__module__": "slime.ray.train_actor"})
    new = NewActor("Mine", "__main__", "", {}, type("Mine", (theirs,), {}))
    group = type("Group", (), {"role": "critic", "_actor_handlers": [1, 2]})()
    monkeypatch.setattr(adapter._STATE, "group", group)
    assert adapter.role_of(new) == ("critic", 2)
    assert adapter.role_of(NewActor("InfoActor", "slime.ray.placement_group", "", {})) == NOBODY
    assert adapter.role_of(NewActor("SGLangEngine", "slime.backends.sglang_utils", "", {})) == (
        "rollout",
        None,
    )
    assert adapter.role_of(NewActor("MegatronTrainRayActor", "another", "", {})) is None
    assert module in slime.FOLLOWS


def test_the_reports_phases_know_slimes_names(need):
    need("upstream")
    text = "".join(path.read_text() for path in (upstream.tree("slime") / "slime").rglob("*.py"))
    for phase, names in slime.PHASES.items():
        assert [canonical(name) for name in names] == [phase] * len(names)
        assert all(re.sub(r"^(ref_|teacher_)", "", name) in text for name in names)
