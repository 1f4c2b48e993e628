"""vLLM's workers, in whatever process they run (the server itself, an EngineCore, a Worker, a Ray actor).

`execute_model` of each scheduler step is a range `generation`, and so is `sample_tokens`, which newer ones
call after it: there the host waits for the pass. These processes are inside the session of the one that
started them, so a rollout server's report shows what its engine does. Where an engine has several workers,
each goes by a name of its own (`inner_workers`).

A server of vLLM's or SGLang's with an endpoint of metrics leaves its address for the recorder of its node,
in whatever process it runs: verl and NeMo RL serve inside a Ray actor, on a port that is free by chance.

Where an engine's outputs are made, each request that is done is written down (`finished_requests`).
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

from rlprof_ops.runtime import request_log
from rlprof_ops.runtime.process.hooks import Watch, attribute, follow
from rlprof_ops.trainers.tasks import task
from rlprof_ops.trainers.vllm import finished_requests, inner_workers


def install(name: str, module: ModuleType) -> None:
    """Follow vLLM's workers, its requests, and `uvicorn.server`, by which engines serve."""
    if name == "uvicorn.server":
        follow(attribute(module, "Server"), "startup", Watch("vLLM", _starts, _started))
        return
    if name == "vllm.v1.engine.output_processor":
        if request_log.asked():
            finished_requests.install(module)
        return
    if name == "vllm.v1.executor.ray_utils":
        inner_workers.follow_ray(module)
        return
    if name == "vllm.v1.worker.gpu_model_runner":
        runner = attribute(module, "GPUModelRunner")
        if hasattr(runner, "sample_tokens"):  # since vLLM 0.11.1
            follow(runner, "sample_tokens", task("vLLM", "generation"))
        return
    worker = attribute(module, "WorkerWrapperBase")
    inner_workers.follow_start(worker)
    follow(worker, "execute_model", task("vLLM", "generation"))


def _starts(server: Any, *_: object, **__: object) -> Any:
    return server


def _started(server: Any, error: BaseException | None) -> None:
    if error is None:
        _tell_address(server)


def _tell_address(server: Any) -> None:
    """Leave the address of an engine's metrics in the node folder."""
    from rlprof_ops.runtime import marks

    if not marks.asked() or not ({"vllm", "sglang"} & sys.modules.keys()):
        return
    routes = getattr(server.config.app, "routes", None) or ()
    sockets = [socket for listening in getattr(server, "servers", ()) for socket in listening.sockets]
    if sockets and any(getattr(route, "path", "") == "/metrics" for route in routes):
        host, port = sockets[0].getsockname()[:2]
        marks.tell_engine(str(host), int(port))
