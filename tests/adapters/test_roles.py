"""Who a new Ray actor is, as the adapters of NeMo RL and RLinf tell the plugin. Names of classes, modules and
actors are those of the trainers' sources."""

from __future__ import annotations

from types import ModuleType

import pytest
from tests import upstream

from rlprof_ops.runtime.process.actor_labels import NOBODY, NewActor, snake_case
from rlprof_ops.trainers.nemo_rl import adapter as nemo_rl_adapter
from rlprof_ops.trainers.nemo_rl import nemo_rl_names
from rlprof_ops.trainers.rlinf import adapter as rlinf_adapter
from rlprof_ops.trainers.rlinf import rlinf_names
from rlprof_ops.trainers.skyrl import adapter as skyrl_adapter
from rlprof_ops.trainers.verl import adapter as verl_adapter

NEMO_RL = {
    "DTensorPolicyWorker": "models.policy.workers.dtensor_policy_worker",
    "DTensorPolicyWorkerV2": "models.policy.workers.dtensor_policy_worker_v2",
    "MegatronPolicyWorker": "models.policy.workers.megatron_policy_worker",
    "VllmGenerationWorker": "models.generation.vllm.vllm_worker",
    "VllmAsyncGenerationWorker": "models.generation.vllm.vllm_worker_async",
    "TRTLLMAsyncGenerationWorker": "models.generation.trtllm.trtllm_worker_async",
    "SGLangGenerationWorker": "models.generation.sglang.sglang_worker",
    "MegatronQuantPolicyWorker": "modelopt.models.policy.workers.megatron_quant_policy_worker",
    "VllmQuantGenerationWorker": "modelopt.models.generation.vllm_quant_worker",
    "VllmQuantAsyncGenerationWorker": "modelopt.models.generation.vllm_quant_worker",
}


@pytest.mark.parametrize(("name", "module"), NEMO_RL.items())
def test_nemo_rls_workers_have_its_own_names_and_their_rank(name: str, module: str):
    actor = NewActor(name, f"nemo_rl.{module}", "lm_policy-0-3", {"RANK": "11"})
    worker, rank = nemo_rl_adapter.role_of(actor) or ("", None)
    assert worker in {worker.name for worker in nemo_rl_names.WORKERS}
    assert rank == 11


@pytest.mark.parametrize(
    ("actor", "worker"),
    [
        ("teacher-0-0", "teacher_dtensor_policy_worker"),
        ("teacher_1-grp0-2", "teacher_1_dtensor_policy_worker"),
        ("reward_model_policy-0-0", "reward_model_policy_dtensor_policy_worker"),
        ("student-0-0", "dtensor_policy_worker"),
        ("", "dtensor_policy_worker"),
    ],
)
def test_groups_of_one_class_that_share_rank_0_are_told_apart(actor: str, worker: str):
    module = "nemo_rl.models.policy.workers.dtensor_policy_worker"
    new = NewActor("DTensorPolicyWorker", module, actor, {"RANK": "0"})
    assert nemo_rl_adapter.role_of(new) == (worker, 0)


@pytest.mark.parametrize(
    ("actor", "worker"),
    [
        ("vllm_server_1_0", ("rollout", 1)),
        ("vllm_server_0_2", ("rollout_node2", 0)),
        ("vllm_server_reward_0_0", ("reward_rollout", 0)),
        ("sglang_server_teacher_1_0_math", ("teacher_rollout", 1)),
        ("sglang_server_reward_1_2", ("reward_rollout_node2", 1)),
        ("trtllm_server_reward_2", ("reward_rollout", 2)),
    ],
)
def test_servers_of_a_reward_model_and_of_a_teacher_are_not_the_policys(actor: str, worker: tuple[str, int]):
    """Names as verl 0.9.1 gives them, `{prefix}server_reward_{replica}_{node}{suffix}`."""
    cls = {"vllm": "vLLMHttpServer", "sglang": "SGLangHttpServer", "trtllm": "TRTLLMHttpServer"}
    new = NewActor(cls[actor.partition("_")[0]], "verl.workers.rollout", actor, {})
    assert verl_adapter.role_of(new) == worker


@pytest.mark.parametrize(
    ("name", "worker"),
    [
        ("TaskRunner", "controller"),
        ("OneStepTaskRunner", "controller"),
        ("FullyAsyncTaskRunner", "task_runner"),
        ("FullyAsyncTrainer", "controller"),
        ("FullyAsyncRollouter", "rollouter"),
    ],
)
def test_who_leads_verls_steps_is_the_controller(name: str, worker: str):
    """Actors of verl 0.9.1's synchronous, one-step-off and fully asynchronous trainers."""
    assert verl_adapter.role_of(NewActor(name, "verl.experimental", "", {})) == (worker, None)


@pytest.mark.parametrize(
    ("trainer", "name"),
    [
        (nemo_rl_adapter, "RayWorkerBuilder.IsolatedWorkerInitializer"),  # as Ray calls a class in a class
        (verl_adapter, "CheckpointEngineWorker"),
        (verl_adapter, "MessageQueue"),
    ],
)
def test_what_does_no_training_is_known_by_the_name_that_ray_gives(
    trainer: ModuleType, name: str, monkeypatch: pytest.MonkeyPatch
):
    known: list[str] = []
    monkeypatch.setattr(trainer, "add_helpers", lambda *names: known.extend(names))
    monkeypatch.setattr(trainer, "expect", lambda *_: None)
    package = trainer.__name__.split(".")[-2]
    trainer.install(package, ModuleType(package))
    assert snake_case(name) in known


WORKERS_OF_SKYRL = {
    "FSDPPolicyWorkerBase": ("workers.fsdp.fsdp_worker", "policy_worker"),
    "MegatronCriticWorkerBase": ("workers.megatron.megatron_worker", "critic_worker"),
    "RefWorkerBase": ("workers.worker", "ref_worker"),
    "VLLMServerActor": ("inference_servers.vllm_server_actor", "inference_engine"),
    "RegistryActor": ("utils.ppo_utils", ""),
}


@pytest.mark.parametrize(("name", "found"), WORKERS_OF_SKYRL.items())
def test_skyrls_actors_have_roles_and_a_subclass_of_the_users_has_its_bases(
    name: str, found: tuple[str, str]
):
    module, worker = f"skyrl.backends.skyrl_train.{found[0]}", found[1]
    assert skyrl_adapter.role_of(NewActor(name, module, "", {})) == (worker, None)
    mine = type("Mine", (type(name, (), {"__module__": module}),), {})
    assert skyrl_adapter.role_of(NewActor("Mine", "__main__", "", {}, mine)) == (worker, None)
    assert skyrl_adapter.role_of(NewActor(name, "__main__", "", {})) is None


ENGINES = {name: module for name, module in NEMO_RL.items() if "Vllm" in name or "TRTLLM" in name}


@pytest.mark.parametrize(("name", "module"), ENGINES.items())
def test_an_engine_over_several_gpus_is_one_worker_and_its_placeholders_are_nobodys(name: str, module: str):
    """NeMo RL creates an actor for every GPU, `<group>-grp<engine>-<n>`; only the first holds the engine."""
    actors = [(f"vllm_policy-grp{engine}-{n}", str(2 * engine + n)) for engine in (0, 1) for n in (0, 1)]
    news = [NewActor(name, f"nemo_rl.{module}", actor, {"RANK": rank}) for actor, rank in actors]
    first, none, second, none_too = map(nemo_rl_adapter.role_of, news)
    assert none == none_too == NOBODY
    assert first is not None and second is not None and first[0] == second[0] != ""
    assert (first[1], second[1]) == (0, 1)  # engines, as `plan --trainer-config` counts them


def test_nemo_rl_names_and_owns_its_engines_so(need):
    need("upstream")
    root = upstream.tree("nemo_rl") / "nemo_rl"
    groups = (root / "distributed" / "worker_groups.py").read_text()
    assert 'f"{self.name_prefix}-grp{group_idx}-{local_rank}"' in groups
    assert "if local_rank == 0:\n                    worker_bundle_indices = (" in groups
    for file in ("vllm/vllm_worker.py", "trtllm/trtllm_worker_async.py"):
        text = (root / "models" / "generation" / file).read_text()
        assert "self.is_model_owner = bundle_indices is not None" in text


def test_what_is_no_worker_of_a_group_keeps_its_class_name():
    assert nemo_rl_adapter.role_of(NewActor("MathEnvironment", "nemo_rl.environments.math", "", {})) is None
    assert rlinf_adapter.role_of(NewActor("Learner", "__main__", "", {"RANK": "0"})) is None


@pytest.mark.parametrize("group", [worker.name for worker in rlinf_names.WORKERS] + ["my group"])
def test_rlinfs_groups_and_channels_are_called_as_they_were_launched(group: str):
    variables = {"GROUP_NAME": group, "RANK": "2", "CLUSTER_NAMESPACE": "RLinf"}
    assert rlinf_adapter.role_of(
        NewActor("EmbodiedFSDPActor", "rlinf.workers.actor", f"{group}:2", variables)
    ) == (
        group,
        2,
    )


@pytest.mark.parametrize("name", ["_RemoteNodeProbe", "WorkerManager", "CollectiveManager", "NodeManager"])
def test_rlinfs_probes_and_managers_are_nobodys(name: str):
    assert rlinf_adapter.role_of(NewActor(name, "rlinf.scheduler.cluster.node", name, {})) == NOBODY
