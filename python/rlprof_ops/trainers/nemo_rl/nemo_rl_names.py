"""NeMo RL's workers, phases and report names: what rendering, reading and the plan need to know."""

from __future__ import annotations

from rlprof_ops.trainers.dialects import WorkerKind

_POLICY = ("logprob", "ref_logprob", "train", "weight_sync")
_GENERATION = ("generation", "weight_sync")
WORKERS = (
    WorkerKind("dtensor_policy_worker", ("policy_worker",), _POLICY),
    WorkerKind("dtensor_policy_worker_v2", ("policy_worker",), _POLICY),
    WorkerKind(
        "megatron_policy_worker",
        ("policy_worker",),
        _POLICY,
        "needs LD_LIBRARY_PATH, or libtransformer_engine.so fails to load",
    ),
    WorkerKind("megatron_quant_policy_worker", ("policy_worker",), _POLICY, "as megatron_policy_worker"),
    WorkerKind(
        "vllm_generation_worker",
        ("generation_worker",),
        _GENERATION,
        "with TP x PP > 1 its own report is empty; the inner workers write worker_process_<PID> or"
        " vllm_tp_worker_*",
    ),
    WorkerKind(
        "vllm_async_generation_worker", ("generation_worker",), _GENERATION, "as vllm_generation_worker"
    ),
    WorkerKind(
        "trtllm_async_generation_worker",
        ("generation_worker",),
        _GENERATION,
        "one report per inner GPU worker",
    ),
    WorkerKind(
        "sglang_generation_worker",
        ("generation_worker",),
        _GENERATION,
        "is wrapped, but never started: reports stay empty",
    ),
)
TORCH_WORKERS = ("dtensor_policy_worker", "megatron_policy_worker", "vllm_generation_worker")
# Ranges of the workers, and labels of the driver's Timer.
PHASES = {
    "generation": (
        "vllm_genertion_worker/generate",  # spelt so upstream
        "generation",
        "exposed_generation",
    ),
    "reward": ("reward_calculation",),
    "logprob": ("policy_worker/get_logprobs", "policy_and_reference_logprobs"),
    "ref_logprob": ("policy_worker/get_reference_policy_logprobs",),
    "advantage": ("advantage_calculation",),
    "train": ("megatron_policy_worker/train", "dtensor_policy_worker/train", "policy_training"),
    "weight_sync": (
        "refit",
        "weight_sync",
        "prepare_for_generation/total",
        "prepare_for_generation/transfer_and_update_weights",
    ),
}
# Without these folders libtransformer_engine.so does not load in a Megatron worker under nsys; its docs,
# nsys-profiling.md, have x86-64 alone. By CUDA's name and the system's.
_MACHINES = {"x86_64": ("x86_64-linux", "x86_64-linux-gnu"), "aarch64": ("sbsa-linux", "aarch64-linux-gnu")}
LIBRARY_PATHS = {
    machine: f"/usr/local/cuda/targets/{cuda}/lib:/usr/local/cuda/lib64:/usr/local/cuda/lib:"
    f"/usr/local/nvidia/lib64:/usr/local/nvidia/lib:/usr/lib/{system}"
    for machine, (cuda, system) in _MACHINES.items()
}
LD_LIBRARY_PATH = LIBRARY_PATHS["x86_64"]
_MEGATRON = tuple(worker.name for worker in WORKERS if "megatron" in worker.name)
RAY_LOG_SYNC_FREQUENCY_S = 30
NO_END = 1_000_000  # NeMo RL has no open range; its own tests go this far


def library_path(worker: str, machine: str, before: str) -> str:
    """LD_LIBRARY_PATH of a worker under nsys, `before` without us: a Megatron worker, a teacher's too, has
    its folders first.
    """
    needed = LIBRARY_PATHS.get(machine, "")
    if not worker.endswith(_MEGATRON) or not needed or before.startswith(needed):
        return before
    return f"{needed}:{before}" if before else needed
