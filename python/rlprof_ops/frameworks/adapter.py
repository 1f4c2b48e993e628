"""What an adapter is: the modules of a trainer that it waits for, and what it does once one is imported.

An adapter is `frameworks/<trainer>/adapter.py` with a function `install(name, module)`. It is imported and
called when a module of `MODULES` has been imported in a process of the job, in the trainer's own process,
before the import statement returns. It may put hooks (`rlprof_ops.runtime.process.hooks`) around functions of
the module that call `rlprof_ops.runtime.step_clock` and `rlprof_ops.runtime.profiler`. It changes nothing
that the trainer computes and needs the standard library alone.

What it does not know it leaves as it is: `UnknownShape` says what was looked for. Whatever else it raises is
logged once, written down for the manifest, and the trainer goes on without it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

# Module -> (trainer, the adapter's module). A module is named where the function lives that has to be
# wrapped.
MODULES: Mapping[str, tuple[str, str]] = {
    "ray.actor": ("ray", "rlprof_ops.runtime.process.actor_labels"),
    "ray._private.function_manager": ("ray", "rlprof_ops.runtime.process.actor_calls"),
    "torch.cuda.profiler": ("torch", "rlprof_ops.runtime.process.cuda_profiler"),
    "trl": ("trl", "rlprof_ops.frameworks.trl.adapter"),
    "trl.extras.profiling": ("trl", "rlprof_ops.frameworks.trl.adapter"),
    "transformers.trainer_callback": ("trl", "rlprof_ops.frameworks.trl.adapter"),
    "vllm.v1.worker.worker_base": ("vllm", "rlprof_ops.frameworks.vllm.adapter"),
    "uvicorn.server": ("vllm", "rlprof_ops.frameworks.vllm.adapter"),
    "nemo_rl": ("nemo_rl", "rlprof_ops.frameworks.nemo_rl.adapter"),
    "nemo_rl.utils.nsys": ("nemo_rl", "rlprof_ops.frameworks.nemo_rl.adapter"),
    "nemo_rl.utils.timer": ("nemo_rl", "rlprof_ops.frameworks.nemo_rl.adapter"),
    "rlinf": ("rlinf", "rlprof_ops.frameworks.rlinf.adapter"),
    "rlinf.scheduler.cluster.cluster": ("rlinf", "rlprof_ops.frameworks.rlinf.adapter"),
    "rlinf.scheduler.worker.worker": ("rlinf", "rlprof_ops.frameworks.rlinf.adapter"),
    "rlinf.scheduler.worker.worker_group": ("rlinf", "rlprof_ops.frameworks.rlinf.adapter"),
    "rlinf.utils.distributed": ("rlinf", "rlprof_ops.frameworks.rlinf.adapter"),
    "verl": ("verl", "rlprof_ops.frameworks.verl.adapter"),
    "verl.utils.profiler.profile": ("verl", "rlprof_ops.frameworks.verl.adapter"),
    "verl.utils.profiler.performance": ("verl", "rlprof_ops.frameworks.verl.adapter"),
    "verl.single_controller.ray.base": ("verl", "rlprof_ops.frameworks.verl.adapter"),
    "verl.trainer.ppo.v1.trainer_base": ("verl", "rlprof_ops.frameworks.verl.adapter"),
    "verl.trainer.ppo.ray_trainer": ("verl", "rlprof_ops.frameworks.verl.adapter"),
    "verl.workers.engine_workers": ("verl", "rlprof_ops.frameworks.verl.adapter"),
    "openrlhf": ("openrlhf", "rlprof_ops.frameworks.openrlhf.adapter"),
    "openrlhf.trainer.ppo_trainer": ("openrlhf", "rlprof_ops.frameworks.openrlhf.adapter"),
    "openrlhf.trainer.ppo_utils.experience_maker": ("openrlhf", "rlprof_ops.frameworks.openrlhf.adapter"),
    "openrlhf.trainer.ppo_utils.samples_generator": ("openrlhf", "rlprof_ops.frameworks.openrlhf.adapter"),
    "openrlhf.trainer.ray.launcher": ("openrlhf", "rlprof_ops.frameworks.openrlhf.adapter"),
    "openrlhf.trainer.ray.ppo_actor": ("openrlhf", "rlprof_ops.frameworks.openrlhf.adapter"),
    "openrlhf.trainer.ray.ppo_critic": ("openrlhf", "rlprof_ops.frameworks.openrlhf.adapter"),
}


def leader(worker: str, rank: int = 0, world_size: int = 1) -> Any:
    """The profiler of the process whose steps are the job's; one that does nothing where nothing is asked."""
    from rlprof_ops.runtime import null_profiler, profiler

    return profiler.lead(worker, rank, world_size) or null_profiler.NullProfiler()
