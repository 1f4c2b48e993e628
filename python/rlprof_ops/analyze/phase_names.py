"""What trainers call the phases of a step: one vocabulary for all of them.

Sources: NeMo RL `wrap_with_nvtx_name` and its timer keys, verl `marked_timer` and `DistProfiler` roles, RLinf
`Worker.timer` tags; a test greps their sources again.
"""

from __future__ import annotations

import re
from functools import cache

from rlprof_ops import trainers

_SAME_PHASE: dict[str, str] = {
    "generation": (
        "generation generate gen gen_max rollout rollout_generate generate_sequences generate_async"
        " agent_loop_rollout_generate rollout/generate interact predict predict_rtc generate_text"
        " generate_one_epoch generate_epoch interact_once run_interact_once env_interact_step env/step"
        " env/bootstrap_step"
    ),
    "reward": (
        "reward rewards compute_rm_score compute_reward compute_rewards compute_score reward_model score"
        " get_reward_model_output compute_bootstrap_rewards"
    ),
    "ref_logprob": (
        "ref_logprob ref ref_logprobs compute_ref_log_prob ref_compute_log_prob reference_logprobs"
        " get_reference_policy_logprobs reference_policy_logprobs compute_opd_teacher_logprobs"
    ),
    "logprob": (
        "logprob logprobs old_log_prob compute_log_prob actor_compute_log_prob get_logprobs policy_logprobs"
        " policy_and_reference_logprobs get_topk_logits prepare_for_lp_inference"
    ),
    "values": "values compute_values get_values",
    "advantage": (
        "advantage advantages adv compute_advantage advantage_calculation compute_adv"
        " compute_advantages_and_returns"
    ),
    "train": (
        "train update_actor actor_update policy_training run_training train_step update_policy"
        " policy_forward_backward training training_step update_one_epoch train_microbatch begin_train_step"
        " finish_train_step abort_train_step prepare_for_training forward_actor forward_alpha ppo_train"
    ),
    "critic_train": "critic_train update_critic critic_update forward_critic",
    "weight_sync": (
        "weight_sync update_weights refit sync_weights weight_update broadcast_weights_for_collective"
        " update_weights_from_collective update_weights_from_checkpoint_engine"
        " update_weights_from_decoded_sparse_payload update_weights_via_ipc_zmq stream_weights_via_ipc_zmq"
        " stream_weights_via_http stream_remote_sparse_weights prepare_refit_info offload_before_refit"
        " offload_after_refit init_remote_sparse_delta_baseline prepare_for_generation sync_model_to_rollout"
        " sync_model_from_actor poll_weight_sync request_weight_sync broadcast_to_vllm"
    ),
    "checkpoint": "checkpoint save_checkpoint checkpointing",
    "validation": "validation testing evaluate run_eval",
}
PHASE_ORDER = tuple(_SAME_PHASE)
# Work on a share of the data that is cut already is the same work (NeMo RL).
_SHARES = ("_presharded",)
_CRITIC = re.compile(r"value_worker\w*/")
_VLLM = re.compile(r"execute_(?:context|new|\d+_context)_.*generation_|execute_model|gpu_model_runner")


@cache
def _vocabulary() -> dict[str, str]:
    """Label -> phase: the trainers' own labels as `trainers` has them, then the words above. Made when the
    first label is looked up: they take a while to load.
    """
    pairs = (pair for named in trainers.phases() for pair in named.items())
    labels = {label.lower(): phase for phase, found in pairs for label in found}
    return labels | {name: phase for phase, names in _SAME_PHASE.items() for name in names.split()}


def known(name: str) -> str | None:
    """The design's word for a label; None for one that no trainer has."""
    vocabulary, short = _vocabulary(), name.strip().lower()
    for share in _SHARES:
        short = short.removesuffix(share)
    for candidate in (short, short.rpartition("/")[2], short.rpartition("::")[2], short.rpartition(".")[2]):
        if candidate in vocabulary:
            phase = vocabulary[candidate]
            return "critic_train" if phase == "train" and _CRITIC.search(short) else phase
    return "generation" if _VLLM.search(name) else None


def canonical(name: str) -> str:
    """The design's word for a phase, or the name itself: "dtensor_policy_worker/train" and "update_actor"
    are "train".
    """
    return known(name) or name.strip()
