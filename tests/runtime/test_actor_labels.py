"""Which actor gets which label: by rule, by class name, by the request; what a driver hands on of its own."""

from __future__ import annotations

import pytest
from tests.needs import need

from rlprof_ops.runtime.process import actor_labels
from rlprof_ops.runtime.process.actor_labels import NewActor, identify, own_variables, snake_case


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("DTensorPolicyWorker", "dtensor_policy_worker"),
        ("vLLMHttpServer", "vllm_http_server"),
        ("VllmGenerationWorker", "vllm_generation_worker"),
        ("MegatronPolicyWorker", "megatron_policy_worker"),
        ("LLMRayActor", "llm_ray_actor"),
        ("GPUWorker", "gpu_worker"),
        ("worker", "worker"),
    ],
)
def test_a_class_name_becomes_a_worker_name(name: str, expected: str):
    assert snake_case(name) == expected


@pytest.fixture
def no_rules(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(actor_labels, "_STATE", actor_labels._State())


def test_ranks_are_counted_by_name_where_nobody_tells_them(no_rules: None):
    def new(name: str) -> NewActor:
        return NewActor(name, "train", "", {})

    assert [identify(new(name)) for name in ("Policy", "Env", "Policy")] == [
        ("policy", 0),
        ("env", 0),
        ("policy", 1),
    ]


def test_a_rule_of_an_adapter_comes_first_and_ray_is_nobody(no_rules: None):
    actor_labels.add_rule(lambda actor: ("actor", 3) if actor.class_name == "WorkerDict" else None)
    assert identify(NewActor("WorkerDict", "verl", "", {})) == ("actor", 3)
    assert identify(NewActor("JobSupervisor", "ray.dashboard.modules.job", "", {})) is None


def test_what_belongs_to_the_creator_is_not_handed_on():
    mine = {
        "RLPROF_NODE": "n1",
        "TMPDIR": "/tmp/rlprof-0-1/tmp",
        "LD_PRELOAD": "/n/libToolsInjectionProxy64.so:/lib/mine.so",
        "NVTX_INJECTION64_PATH": "/n/lib.so",
        "NSYS_PROFILING_SESSION_ID": "5",
    }
    given = {**mine, "WANDB_MODE": "offline", "RANK": "1"}
    kept = {"WANDB_MODE": "offline", "RANK": "1", "LD_PRELOAD": "/lib/mine.so"}
    assert own_variables(given, mine) == kept
    # verl switches NVTX injection off for torch's profiler in just this way.
    own = {"TMPDIR": "/scratch", "RLPROF_WORKER": "mine", "NVTX_INJECTION64_PATH": "/nonexistent"}
    assert own_variables(own, mine) == own
    assert own_variables(own, {}) == own


class FakeActorClass:
    """The part of Ray's ActorClass that labels look at; test_trainers_own_profiler.py has the real one."""

    class __ray_metadata__:
        class_name = "MyTrainWorker"
        actor_creation_function_descriptor = None

        class modified_class:
            __module__ = "my_trainer"


def test_a_trainer_that_nobody_knows_is_named_with_what_to_do(
    no_rules: None, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
):
    need("ray")
    monkeypatch.setenv("RLPROF_REQUEST_JSON", '{"captures": [{"workers": ["my_*"], "steps": "2"}]}')
    for _ in range(2):
        assert actor_labels.labelled(FakeActorClass, {})["rlprof"]["worker"] == "my_train_worker"
    said = capfd.readouterr().err
    assert (
        said.count("no adapter knows the trainer that creates MyTrainWorker") == 1 and "prof.step(n)" in said
    )


def test_the_drivers_node_is_nobodys_whoever_creates_the_actor():
    """NeMo RL's driver sends its environment to an actor on another node, which creates the workers."""
    sent = {"RLPROF_NODE": "head", "RLPROF_NODE_DIR": "/tmp/of-the-head", "RANK": "0"}
    assert own_variables(sent, {"RLPROF_NODE": "n2", "RLPROF_NODE_DIR": "/tmp/of-n2"}) == {"RANK": "0"}
    # Nor does it lead a job, where an actor hands on the driver's variables: nobody would open its windows.
    assert own_variables({"RLPROF_LEADS": "1", "RANK": "0"}, {}) == {"RANK": "0"}
