"""Who a worker is that a trainer handed to Ray's own profiler plugins, and whether the request wants it
profiled.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rlprof_ops import env_names
from rlprof_ops.backends import report_names
from rlprof_ops.backends.wrapping import Identity
from rlprof_ops.runtime.process.worker_identity import DRIVERS, rank_from

if TYPE_CHECKING:
    from rlprof_ops.request import CaptureSpec, ProfileRequest

# Ray actors that an engine creates inside a generation worker, as NeMo RL names their reports (vLLM's
# RayDistributedExecutor, TensorRT-LLM's `ray_worker_nsight_options`). RANK in their variables is the outer
# worker's.
INNER_WORKER = "vllm_tp_worker"
_INNER_WORKERS = (INNER_WORKER, "trtllm_async_generation_worker")
# vLLM's own options for them: RayDistributedExecutor._configure_ray_workers_use_nsight,
# vllm/v1/executor/ray_executor.py.
_VLLM_OPTIONS = {"t": "cuda,cudnn,cublas", "o": "worker_process_%p", "cuda-graph-trace": "node"}


@dataclass(frozen=True)
class Selection:
    """`spec` is the capture of the request that selects the worker; None when no request speaks of this
    backend.
    """

    wanted: bool
    spec: CaptureSpec | None = None


def identify(runtime_env: Mapping[str, Any], options: Mapping[str, Any] | None = None) -> Identity:
    """The identity in a runtime env: our own key, the variables of its `env_vars`, then the report name
    its `options` ask for.
    """
    output = (options or {}).get("o")
    own = runtime_env.get("rlprof") or {}
    variables = runtime_env.get("env_vars") or {}
    named = report_names.parse(_stem(output).replace("%p", "0") + ".nsys-rep") if output else None
    worker = own.get("worker") or variables.get(env_names.WORKER) or (named.worker if named else None)
    rank = own.get("rank")
    if rank is None:
        rank = rank_from(variables)
    if rank is None and named is not None:
        rank = named.rank
    window = report_names.StepsNamed(named.start, named.stop) if named and named.start is not None else None
    if not own and (options == _VLLM_OPTIONS or (named is not None and named.worker in _INNER_WORKERS)):
        return Identity(named.worker if named and named.worker else INNER_WORKER, None, window, rank or 0)
    return Identity(worker, rank, window)


def _stem(output: str) -> str:
    return output.strip("'\"").rpartition("/")[2]


def select(identity: Identity, request: ProfileRequest | None, backend: str) -> Selection:
    """Whether to keep the profiling that a trainer put on this worker.

    A request that asks nothing of `backend` leaves the trainer's own choice alone. Otherwise the request
    decides; where the worker's name is not known, its rank does, and a process with neither counts as the
    controller.
    """
    specs = [spec for spec in request.captures if spec.backend == backend and spec] if request else []
    if not specs:
        return Selection(True)
    for spec in specs:
        if identity.worker is not None:
            wanted = spec.matches(identity.worker, identity.rank)
        elif identity.rank is not None:
            wanted = spec.ranks is None or identity.rank in spec.ranks
        else:
            # the trainer's controller, or something that inherited its options
            wanted = any(spec.matches(name) for name in DRIVERS)
        if wanted:
            return Selection(True, spec)
    return Selection(False)
