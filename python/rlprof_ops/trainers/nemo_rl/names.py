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
LD_LIBRARY_PATH = (
    "/usr/local/cuda/targets/x86_64-linux/lib:/usr/local/cuda/lib64:/usr/local/cuda/lib:/usr/local/nvidia/lib64:"
    "/usr/local/nvidia/lib:/usr/lib/x86_64-linux-gnu"
)
RAY_LOG_SYNC_FREQUENCY_S = 30
NO_END = 1_000_000  # NeMo RL has no open range; its own tests go this far
