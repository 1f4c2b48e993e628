"""vLLM's workers, in whatever process they run (the server itself, an EngineCore, a Worker, a Ray actor).

`execute_model` of each scheduler step is a range `generation`. These processes are inside the session of the
one that started them, so a rollout server's report shows what its engine does.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

from rlprof_ops.frameworks.adapter import attribute, safely, wrap


def install(name: str, module: ModuleType) -> None:
    """Follow `vllm.v1.worker.worker_base`."""
    wrap(attribute(module, "WorkerWrapperBase"), "execute_model", _execute_model)


def _execute_model(before: Any) -> Any:
    def execute_model(*arguments: Any, **named: Any) -> Any:
        from rlprof_ops.runtime import follower

        task = safely("vLLM", follower.task, "generation")
        if task is None:
            return before(*arguments, **named)
        safely("vLLM", task.__enter__)
        try:
            return before(*arguments, **named)
        finally:
            safely("vLLM", task.__exit__, None, None, None)

    return execute_model
