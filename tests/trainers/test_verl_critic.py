"""verl's main_ppo, unchanged, as PPO: with a critic, and a reward model that is a real vLLM server in a pool
of its own. Who is who, and steps and phases by what verl logs. It takes about 8 GB.

One thing differs from a run on GPUs: verl loads a critic with flash attention only (`critic_on_cpu.py`).
"""

from __future__ import annotations

from typing import Any

import pytest

from tests.analyze.as_data import answer_of
from tests.real_nsys import nvtx_ranges
from tests.trainers import environments
from tests.trainers.local_job import LocalJob
from tests.trainers.own_log import agree
from tests.trainers.verl_log import logged

pytestmark = [pytest.mark.long, pytest.mark.nsys, pytest.mark.timeout(environments.INSTALL_DEADLINE_S + 1200)]
HERE = environments.HERE / "verl" / "critic"
STEPS, CAPTURED = 4, 2
ROLES = ("actor", "agent_loop", "controller", "reward_loop", "reward_rollout", "rollout")
TIMED = {"gen", "values", "adv", "update_critic", "update_actor", "update_weights"}


def overrides() -> tuple[str, ...]:
    model, reward = environments.ensure("verl").data / "model", "reward.reward_model"
    return (
        "algorithm.adv_estimator=gae",
        "critic.strategy=fsdp2",
        f"critic.model.path={model}",
        "critic.model.use_remove_padding=False",
        "critic.model.enable_gradient_checkpointing=False",
        "+critic.model.override_config.attn_implementation=sdpa",
        "critic.fsdp.use_torch_compile=False",
        "critic.ppo_micro_batch_size_per_gpu=4",
        f"reward.custom_reward_function.path={HERE / 'reward_by_model.py'}",
        f"+reward.custom_reward_function.reward_kwargs.model={model}",
        f"{reward}.enable=True",
        f"{reward}.enable_resource_pool=True",
        f"{reward}.n_gpus_per_node=1",
        f"{reward}.nnodes=1",
        f"{reward}.model_path={model}",
        f"{reward}.rollout.name=vllm",
        f"{reward}.rollout.dtype=float32",
        f"{reward}.rollout.tensor_model_parallel_size=1",
        f"{reward}.rollout.free_cache_engine=False",
        f"+{reward}.rollout.enable_sleep_mode=False",
        f"{reward}.rollout.prompt_length=64",
        f"{reward}.rollout.response_length=16",
        f"{reward}.rollout.max_model_len=128",
        f"{reward}.rollout.max_num_seqs=16",
        f"{reward}.rollout.max_num_batched_tokens=512",
    )


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> LocalJob:
    if why := environments.lacking("verl"):
        pytest.skip(why)
    return LocalJob.take(
        "verl",
        tmp_path_factory.mktemp("verl_critic") / "job",
        STEPS,
        1000,
        overrides(),
        {"PYTHONPATH": str(HERE), "VERL_USE_EXTERNAL_MODULES": "verl_cpu_platform,critic_on_cpu"},
        GPUS_PER_NODE="2",
        CPUS_PER_WORKER="32",
        RLPROF_STEPS=str(CAPTURED),
        RLPROF_WORKERS="*",
        RLPROF_OPTIONS='{"t": "nvtx"}',
    )


@pytest.fixture(scope="module")
def answer(job: LocalJob) -> dict[str, Any]:
    return answer_of(job.run, jobs=1)


def test_each_role_has_its_window_and_the_reward_models_server_is_not_the_policys(job: LocalJob) -> None:
    expected = [f"nsight/{role}/rank0/step{CAPTURED}-{CAPTURED}" for role in ROLES]
    assert job.states() == dict.fromkeys(expected, "ok"), job.said()[-4000:]


def test_steps_and_phases_are_verls_to_5_ms(job: LocalJob) -> None:
    own, told = logged(job.said()), {row["step"]: row for row in job.events("step")}
    assert sorted(told) == sorted(own) == list(range(1, STEPS + 1))
    times: dict[tuple[int, str], tuple[float, float]] = {}
    for step, row in told.items():
        took = {name: (end - begin) / 1e9 for name, begin, end, _ in row["phases"]}
        assert set(took) >= TIMED, sorted(took)
        took["step"] = (row["end_ns"] - row["begin_ns"]) / 1e9
        for name in [name for name in took if f"timing_s/{name}" in own[step]]:
            times[step, name] = took[name], own[step][f"timing_s/{name}"]
    agree(times)


def test_generation_of_the_reward_model_is_its_own(answer: dict[str, Any]) -> None:
    generated = {row["worker"]: row for row in answer["phases"] if row["phase"] == "generation"}
    assert {"rollout", "reward_rollout"} <= {name.partition("_tp")[0] for name in generated}
    assert {(row["worker"], row["ranks"]) for row in generated.values()} == {
        (name, 1) for name in generated
    }, "no mean over servers of different models"


def test_the_critics_work_is_in_the_process_of_the_actor(job: LocalJob, tmp_path: Any) -> None:
    [report] = job.run.glob("profiles/nsight/actor/rank0/*.nsys-rep")
    ranges = set(nvtx_ranges(report, tmp_path))
    assert [name for name in ranges if "critic" in name], sorted(ranges)
