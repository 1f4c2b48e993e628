"""Names of the processes in which an engine of several GPUs computes: `<server>_tp<rank>`.

With vLLM's `mp` executor they are children of the server and inside its nsys session: each says which one it
is (`ENGINE_WORKER`), so that the report of the session has a row for each. With its `ray` executors they are
actors, which get a session of their own where the request selects their server. Of a server that nobody
selects they are `vllm_tp_worker`, the name that NeMo RL's reports have.
"""

from __future__ import annotations

import multiprocessing
import os
import re
from types import ModuleType
from typing import Any

from rlprof_ops import env_names
from rlprof_ops.request import server_of
from rlprof_ops.runtime.process.actor_labels import NewActor, add_rule
from rlprof_ops.runtime.process.event_log import ENGINE_WORKER
from rlprof_ops.runtime.process.hooks import Watch, follow

_NOBODYS = "vllm_tp_worker"
_ACTORS = ("RayWorkerProc", "RayWorkerWrapper")
# In the actors' names: vllm.v1.executor.ray_utils.build_actor_name.
_NAMED_PLACE = re.compile(r"_(?:TP|PP)\d+")


def follow_start(wrapper: Any) -> None:
    """Follow `WorkerWrapperBase.init_worker`, in which a worker learns who it is."""
    follow(wrapper, "init_worker", Watch("vLLM's workers", _begins))


def _begins(wrapper: Any, all_kwargs: Any, *_: object, **__: object) -> None:
    if multiprocessing.parent_process() is None:
        return  # the trainer's own process, in which a rank of its engine computes (`external_launcher`)
    server = os.environ.get(env_names.WORKER)
    config = all_kwargs[wrapper.rpc_rank]["vllm_config"].parallel_config
    place = _place(config, int(getattr(wrapper, "global_rank", wrapper.rpc_rank)))
    if not server or server_of(server) or server == _NOBODYS or not place:
        return
    from rlprof_ops.runtime import step_clock

    os.environ[env_names.WORKER] = server + place
    step_clock.note(ENGINE_WORKER, worker=server + place)


def _place(config: Any, rank: int) -> str:
    """`_dp1_pp0_tp3`: of what there are several; "" for an engine of one worker."""
    tensor = int(config.tensor_parallel_size)
    found = (
        ("dp", config.data_parallel_size, config.data_parallel_rank),
        ("pp", config.pipeline_parallel_size, rank // tensor),
        ("tp", tensor, rank % tensor),
    )
    return "".join(f"_{name}{number}" for name, count, number in found if count > 1)


def follow_ray(module: ModuleType) -> None:
    """Know the actors of `vllm.v1.executor.ray_utils`, and keep the server's profiling out of their job."""
    add_rule(_label)
    follow(module, "initialize_ray_cluster", Watch("vLLM's workers", _without_the_servers))


def _without_the_servers(parallel_config: Any, *_: object, **__: object) -> None:
    """vLLM hands its actor's whole runtime env to the Ray job in which its workers run, and who it is too."""
    (parallel_config.ray_runtime_env or {}).pop("rlprof", None)


class _Counted:
    """The actors without a place in their name that this process has created."""

    count = 0


def _label(actor: NewActor) -> tuple[str, int | None] | None:
    if actor.class_name not in _ACTORS or not actor.module.startswith("vllm."):
        return None
    place = "".join(sorted(_NAMED_PLACE.findall(actor.name))).lower()
    if not place:
        place, _Counted.count = f"_tp{_Counted.count}", _Counted.count + 1
    env = os.environ
    if env.get(env_names.WORKER):
        return env[env_names.WORKER] + place, int(env.get(env_names.RANK) or 0)
    first = env.get("RANK", "")
    return _NOBODYS, (int(first) if first.isdigit() else 0) + int(place.rpartition("_tp")[2] or 0)
