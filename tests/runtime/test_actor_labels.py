"""Which actor gets which label: by rule, by class name, by the request; what a driver hands on of its own."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.needs import need

from rlprof_ops.host import log_line
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


@pytest.fixture
def in_image(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    need("ray")
    monkeypatch.setattr(actor_labels, "_STATE", actor_labels._State())
    monkeypatch.setattr(log_line, "_said", set())
    monkeypatch.setenv("RLPROF_REQUEST_JSON", '{"captures": [{"workers": ["*"], "steps": "2"}]}')
    monkeypatch.setenv("RLPROF_NODE_DIR", str(tmp_path))
    return tmp_path


@pytest.mark.parametrize("own", [{"image_uri": "docker.io/x:1"}, {"container": {"image": "docker.io/x:1"}}])
def test_an_actor_in_an_image_of_its_own_is_created_and_named_in_the_manifest(
    in_image: Path, own: dict[str, object], capfd: pytest.CaptureFixture[str]
):
    from ray._private.utils import get_runtime_env_info
    from ray.runtime_env import RuntimeEnv

    from rlprof_ops.runtime.process.ray_children import without_inherited

    for again in (True, False):  # as Ray does with get_if_exists
        env = actor_labels.labelled(FakeActorClass, {"runtime_env": own, "get_if_exists": again})
    assert dict(env) == own
    (log,) = in_image.glob("events/*.jsonl")
    first, failed = [json.loads(line) for line in log.read_text().splitlines()]
    assert (first["worker"], first["rank"], failed["event"]) == ("my_train_worker", 0, "failed")
    assert "image_uri or container" in failed["reason"]
    assert "my_train_worker is not profiled" in capfd.readouterr().err
    # A child of a profiled worker inherits nothing of it all the same: what Ray sends says so.
    for cut in (
        without_inherited(own),
        actor_labels.labelled(FakeActorClass, {"runtime_env": without_inherited(own)}),
    ):
        sent = json.loads(get_runtime_env_info(cut, is_job_runtime_env=False, serialize=True))
        assert (
            json.loads(sent["serializedRuntimeEnv"]).items() >= {"rlprof": {}, "_nsight": None, **own}.items()
        )
        assert dict(cut) == own and isinstance(cut, RuntimeEnv)
