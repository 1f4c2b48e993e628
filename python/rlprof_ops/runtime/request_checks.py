"""What a request asks of training processes that cannot be, told before a job begins."""

from __future__ import annotations

from typing import Any

from rlprof_ops.runtime.recorders import memory_options, torch_options


def problems(request: Any, gpu: bool | None = None) -> list[str]:
    """One message for each capture that would fail; [] when all is well.

    `gpu`: whether the machines of the workers have one; None: as this machine has.
    """
    found = []
    gpu = memory_options.has_gpu() if gpu is None else gpu
    for number, spec in enumerate(request.captures, 1):
        try:
            if spec.backend == "torch":
                torch_options.parse(spec.options, spec.flags)
            elif spec.backend == "memory":
                options = memory_options.parse(spec.options, spec.flags)
                if spec.steps and request.enabled and not options.host and not gpu:
                    found.append(f"capture {number}: {memory_options.NEEDS_CUDA}")
        except ValueError as error:
            found.append(f"capture {number}: {error}")
    return found
