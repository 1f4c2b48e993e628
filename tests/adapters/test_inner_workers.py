"""What the processes of an engine over several GPUs are called. `tests/trainers/test_tensor_parallel.py` has
the real ones.
"""

from __future__ import annotations

import multiprocessing
import os
from types import SimpleNamespace

import pytest

from rlprof_ops.request import request_from_dict, server_of
from rlprof_ops.runtime import step_clock
from rlprof_ops.runtime.process.actor_labels import NewActor
from rlprof_ops.trainers.vllm import inner_workers

V2 = "vllm.v1.executor.ray_executor_v2"
V1 = "vllm.v1.executor.ray_utils"


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    monkeypatch.setattr(inner_workers._Counted, "count", 0)
    monkeypatch.setenv("RLPROF_WORKER", "rollout")
    monkeypatch.setenv("RLPROF_RANK", "3")
    return monkeypatch


def label(class_name: str, name: str = "", module: str = V2) -> tuple[str, int | None] | None:
    return inner_workers._label(NewActor(class_name, module, name, {}))


def test_rays_actors_are_parts_of_the_server_that_creates_them(server: pytest.MonkeyPatch) -> None:
    assert label("RayWorkerProc", "vllm_Worker_a1b2_TP1") == ("rollout_tp1", 3)
    assert label("RayWorkerProc", "vllm_Worker_a1b2_TP1_PP2") == ("rollout_pp2_tp1", 3)
    assert [label("RayWorkerWrapper", module=V1) for _ in range(2)] == [
        ("rollout_tp0", 3),
        ("rollout_tp1", 3),
    ]
    assert label("RayWorkerProc", module="mine") is None and label("Policy") is None


def test_those_of_a_server_that_nobody_selects_have_nemo_rls_name(server: pytest.MonkeyPatch) -> None:
    server.delenv("RLPROF_WORKER")
    server.setenv("RANK", "4")
    assert label("RayWorkerProc", "vllm_Worker_a1b2_TP1") == ("vllm_tp_worker", 5)


def begin(tensor: int, rank: int, pipeline: int = 1, data: int = 1, is_child: bool = True) -> list[str]:
    """What a worker says of itself when it begins."""
    said: list[str] = []
    config = SimpleNamespace(
        tensor_parallel_size=tensor,
        pipeline_parallel_size=pipeline,
        data_parallel_size=data,
        data_parallel_rank=1,
    )
    wrapper = SimpleNamespace(rpc_rank=0, global_rank=rank)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(multiprocessing, "parent_process", lambda: is_child or None)
        patched.setattr(step_clock, "note", lambda event, worker: said.append(f"{event} {worker}"))
        inner_workers._begins(wrapper, [{"vllm_config": SimpleNamespace(parallel_config=config)}])
    return said


def test_a_child_of_the_server_says_which_part_it_is_and_once(server: pytest.MonkeyPatch) -> None:
    assert begin(1, 0) == []
    assert begin(2, 1) == ["engine_worker rollout_tp1"]
    assert begin(2, 1) == []  # it is called so already
    server.setenv("RLPROF_WORKER", "rollout")
    assert begin(2, 3, pipeline=2, data=2) == ["engine_worker rollout_dp1_pp1_tp1"]
    server.delenv("RLPROF_WORKER")
    assert begin(2, 1) == []


def test_a_rank_of_an_engine_in_the_trainers_own_process_keeps_the_trainers_name(
    server: pytest.MonkeyPatch,
) -> None:
    """vLLM's `external_launcher`, with which TRL and verl spread an engine over their own ranks."""
    server.setenv("RLPROF_WORKER", "trainer")
    assert begin(2, 0, is_child=False) == [] and os.environ["RLPROF_WORKER"] == "trainer"


def test_the_servers_runtime_env_is_not_that_of_its_workers_job() -> None:
    config = SimpleNamespace(ray_runtime_env={"rlprof": {"worker": "rollout", "rank": 0}, "env_vars": {}})
    inner_workers._without_the_servers(config)
    assert config.ray_runtime_env == {"env_vars": {}}
    inner_workers._without_the_servers(SimpleNamespace(ray_runtime_env=None))


@pytest.mark.parametrize(
    ("worker", "server"),
    [("rollout_tp1", "rollout"), ("a_dp0_pp1_tp3", "a"), ("rollout", ""), ("_tp1", ""), ("x_tp1_y", "")],
)
def test_the_server_of_a_part(worker: str, server: str) -> None:
    assert server_of(worker) == server


def test_who_selects_a_server_selects_its_parts() -> None:
    request = request_from_dict({"captures": [{"workers": ["rollout"], "ranks": [3], "steps": 2}]})
    assert request.for_worker("rollout_tp1", 3) and not request.for_worker("rollout_tp1", 0)
    assert not request.for_worker("rollouter", 3)
